"""Rewards from a text classifier, against the classifier's own forward pass on each text alone."""

import random
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from jaxppo.errors import ConfigError, ModelError
from jaxppo.reward_functions.sentiment import find_label, longest_text, make_sentiment_reward

WORDS = ["good", "lovely", "superb", "bad", "awful", "poor", "dull", "the", "film", "was", "a", "and", "music"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
LONGEST = 24


def words_tokenizer(special=True, **options):
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        options = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"} | options
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **options)


def distilbert_config(*labels):
    return DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=32,
        max_position_embeddings=LONGEST,
        dropout=0.5,  # none in an evaluation
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )


def save(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def random_classifier(folder, *labels):
    """A classifier with weights so large that texts differ in their scores."""
    torch.manual_seed(0)
    model = DistilBertForSequenceClassification(distilbert_config(*labels))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return save(folder, model, words_tokenizer())


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """More are slower for models of this size, the more so where other tests run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return random_classifier(tmp_path_factory.mktemp("classifier"), "NEGATIVE", "POSITIVE")


@pytest.fixture(scope="module")
def texts():
    """Texts of different lengths, the shortest and the longest of all among them."""
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 12))) for _ in range(16)] + ["good", "", "bad " * 15]


def ask(reward, texts, prompts=None):
    prompts = [""] * len(texts) if prompts is None else prompts
    return reward(prompts=prompts, completions=texts, completion_ids=[[]] * len(texts), unused=["u"] * len(texts))


def raw_logits(folder, texts, label):
    """The oracle: the model's own forward pass, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows)[:, model.config.label2id[label]].tolist()


@pytest.mark.parametrize("labels", [("NEGATIVE", "POSITIVE"), ("POSITIVE", "NEGATIVE")], ids="-".join)
def test_sentiment_is_the_raw_logit_of_the_label_wherever_it_stands(labels, texts, tmp_path):
    folder = random_classifier(tmp_path, *labels)
    for label in ("POSITIVE", "negative"):
        rewards = ask(make_sentiment_reward(folder, label=label), texts)
        assert rewards == pytest.approx(raw_logits(folder, texts, label.upper()), abs=1e-5)
        assert {type(reward) for reward in rewards} == {float} and max(rewards) - min(rewards) > 0.1
    assert ask(make_sentiment_reward(folder), texts) == ask(make_sentiment_reward(folder, label="POSITIVE"), texts)


def test_sentiment_reads_the_prompt_too(classifier):
    prompts, completions = ["the film was superb and"] * 2, [" dull", " lovely"]
    texts = [prompt + text for prompt, text in zip(prompts, completions, strict=True)]
    reward = make_sentiment_reward(classifier)
    assert ask(reward, completions, prompts) == pytest.approx(ask(reward, texts), abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_sentiment_does_not_depend_on_the_batch(classifier, batch_size, texts, monkeypatch):
    reward = make_sentiment_reward(classifier)
    monkeypatch.setattr("jaxppo.reward_functions.sentiment.BATCH_SIZE", batch_size)
    expected = make_sentiment_reward(classifier)
    assert ask(reward, texts) == ask(reward, texts) == pytest.approx(ask(expected, texts), abs=1e-5)
    assert ask(reward, texts)[::-1] == pytest.approx(ask(expected, texts[::-1]), abs=1e-5)
    assert ask(reward, []) == []


def test_sentiment_leaves_out_texts_without_tokens(tmp_path):
    config = GPT2Config(vocab_size=len(VOCABULARY), n_embd=16, n_layer=1, n_head=2, n_positions=16)
    config.bos_token_id = config.eos_token_id = None
    folder = save(tmp_path, GPT2ForSequenceClassification(config), words_tokenizer(special=False))
    reward = make_sentiment_reward(folder, label="label_1")
    rewards = ask(reward, ["good film", "", "   ", "bad " * 40])
    assert rewards[1] is None and rewards[2] is None
    expected = raw_logits(folder, ["good film", "bad " * 16], "LABEL_1")
    assert [rewards[0], rewards[3]] == pytest.approx(expected, abs=1e-5)
    assert ask(reward, ["", ""]) == [None, None]


def test_longest_text_is_the_smaller_of_two_limits_and_knows_where_roberta_begins_to_count(tmp_path):
    model = DistilBertForSequenceClassification(distilbert_config("A", "B"))
    assert longest_text(model, words_tokenizer()) == LONGEST
    assert longest_text(model, words_tokenizer(model_max_length=10)) == 10
    assert longest_text(model, words_tokenizer(model_max_length=512)) == LONGEST
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=18, pad_token_id=1, **sizes)
    model = RobertaForSequenceClassification(config)
    folder = save(tmp_path, model, words_tokenizer(pad_token="[UNK]"))
    assert longest_text(model, AutoTokenizer.from_pretrained(folder)) == 16
    assert ask(make_sentiment_reward(folder, label="LABEL_0"), ["good " * 100])[0] is not None


def test_find_label_names_the_labels_of_the_model():
    names = {0: "negative", 1: "Positive", 2: "POSITIVE"}
    assert find_label(names, "NEGATIVE") == "negative"
    for wrong in ("LABEL_1", "positive", ""):  # "positive" fits two
        with pytest.raises(ConfigError, match=r"label: .*negative, Positive, POSITIVE"):
            find_label(names, wrong)


def test_sentiment_refuses_a_model_without_a_trained_head(tmp_path):
    folder = save(tmp_path, DistilBertForMaskedLM(distilbert_config("A", "POSITIVE")), words_tokenizer())
    with pytest.raises(ModelError, match=r"classifier\.bias"):
        make_sentiment_reward(folder)


def test_sentiment_opens_no_pickles_and_runs_no_code_of_the_model(tmp_path):
    model = DistilBertForSequenceClassification(distilbert_config("A", "POSITIVE"))
    model.config.save_pretrained(tmp_path / "pickled")
    words_tokenizer().save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    for folder in (tmp_path / "pickled", tmp_path / "missing"):
        with pytest.raises(ModelError, match=f"safetensors at {folder}"):
            make_sentiment_reward(str(folder))
    model.config.auto_map = {"AutoModelForSequenceClassification": "evil.Evil", "AutoConfig": "evil.Config"}
    folder = save(tmp_path, model, words_tokenizer())
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\nclass Config: pass\n")
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"distilbert"', '"evil"'))
    with pytest.raises(ModelError):
        make_sentiment_reward(folder)
    assert not (tmp_path / "ran").exists()


def test_sentiment_names_the_extra_that_is_missing(classifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"torch.*pip install 'jaxppo\[sentiment\]'"):
        make_sentiment_reward(classifier)


def test_sentiment_names_a_label_that_the_model_lacks(classifier):
    with pytest.raises(ConfigError, match=r"^label: .*'GREAT'"):
        make_sentiment_reward(classifier, label="GREAT")
