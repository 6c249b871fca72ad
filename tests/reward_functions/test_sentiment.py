"""Rewards from a text classifier: small ones that are made, and where it matters trained, here."""

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
    pipeline,
)

from jaxppo.errors import ConfigError, ModelError
from jaxppo.reward_functions.sentiment import find_label, longest_text, make_sentiment_reward

GOOD = ["good", "great", "fine", "lovely", "superb", "wonderful", "brilliant", "moving"]
BAD = ["bad", "awful", "poor", "dull", "boring", "dreadful", "clumsy", "tedious"]
NEUTRAL = [
    "the",
    "film",
    "was",
    "a",
    "plot",
    "with",
    "actor",
    "scene",
    "story",
    "music",
    "and",
    "its",
    "director",
    "tells",
]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *NEUTRAL]
LONGEST = 24


def words_tokenizer(special=True, **options):
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        options = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"} | options
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **options)


def distilbert_config(labels):
    return DistilBertConfig(
        vocab_size=len(VOCABULARY),
        dim=32,
        n_layers=1,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=LONGEST,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )


def reviews(count, rng):
    """(text, whether it is positive): neutral words with more words of one side than of the other."""
    rows = []
    for _ in range(count):
        positive = rng.random() < 0.5
        ours, theirs = (GOOD, BAD) if positive else (BAD, GOOD)
        words = rng.choices(NEUTRAL, k=rng.randrange(3, 12)) + rng.choices(ours, k=3) + rng.choices(theirs, k=1)
        rng.shuffle(words)
        rows.append((" ".join(words), positive))
    return rows


def train(model, tokenizer, rows, index_of_positive):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for start in range(0, len(rows), 32):
        texts, positive = zip(*rows[start : start + 32], strict=True)
        encoded = tokenizer(list(texts), padding=True, return_tensors="pt")
        labels = torch.tensor([index_of_positive if p else 1 - index_of_positive for p in positive])
        optimizer.zero_grad()
        model(**encoded, labels=labels).loss.backward()
        optimizer.step()


def save(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """More are slower for models of this size, the more so where other tests run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained():
    """A classifier whose label 1 is POSITIVE, and its tokenizer."""
    torch.manual_seed(0)
    model, tokenizer = (
        DistilBertForSequenceClassification(distilbert_config(["NEGATIVE", "POSITIVE"])),
        words_tokenizer(),
    )
    train(model, tokenizer, reviews(1600, random.Random(0)), index_of_positive=1)
    return model, tokenizer


@pytest.fixture(scope="module", params=[["NEGATIVE", "POSITIVE"], ["POSITIVE", "NEGATIVE"]], ids="-".join)
def classifier(request, trained, tmp_path_factory):
    """Folder of the trained classifier, with its labels in either order."""
    folder = tmp_path_factory.mktemp("classifier")
    model, tokenizer = trained
    ordered = DistilBertForSequenceClassification(distilbert_config(request.param))
    ordered.load_state_dict(model.state_dict())
    if request.param[0] == "POSITIVE":
        for parameter in ordered.classifier.parameters():
            parameter.data = parameter.data.flip(0)
    return save(folder, ordered, tokenizer)


def ask(reward, texts, prompts=None):
    prompts = [""] * len(texts) if prompts is None else prompts
    return reward(prompts=prompts, completions=texts, completion_ids=[[]] * len(texts), unused=["u"] * len(texts))


def raw_logits(folder, texts, label):
    """The oracle: the model's own forward pass, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows)[:, model.config.label2id[label]]


def test_sentiment_gives_positive_texts_the_higher_rewards(classifier):
    rows = reviews(200, random.Random(1))
    rewards = ask(make_sentiment_reward(classifier), [text for text, _ in rows])
    right = sum((reward > 0) == positive for reward, (_, positive) in zip(rewards, rows, strict=True))
    assert right >= 190
    best_bad = sorted(reward for reward, (_, positive) in zip(rewards, rows, strict=True) if not positive)
    worst_good = sorted(reward for reward, (_, positive) in zip(rewards, rows, strict=True) if positive)
    assert worst_good[len(worst_good) // 20] > best_bad[len(best_bad) // 2]


@pytest.mark.parametrize("label", ["POSITIVE", "positive", "NEGATIVE"])
def test_sentiment_is_the_raw_logit_of_the_label_wherever_it_stands(classifier, label):
    texts = [text for text, _ in reviews(20, random.Random(2))]
    rewards = ask(make_sentiment_reward(classifier, label=label), texts)
    assert rewards == pytest.approx(raw_logits(classifier, texts, label.upper()).tolist(), abs=1e-5)
    assert {type(reward) for reward in rewards} == {float}


@pytest.mark.parametrize("function", ["none", "softmax", "sigmoid"])
def test_sentiment_is_what_the_pipeline_says(classifier, function):
    texts = [text for text, _ in reviews(20, random.Random(3))]
    classify = pipeline("text-classification", model=classifier, device="cpu")
    outputs = classify(texts, top_k=None, function_to_apply=function)
    expected = [{entry["label"]: entry["score"] for entry in output}["POSITIVE"] for output in outputs]
    rewards = ask(make_sentiment_reward(classifier, function_to_apply=function), texts)
    assert rewards == pytest.approx(expected, abs=1e-5)
    assert function == "none" or all(0 < reward < 1 for reward in rewards)


def test_sentiment_turns_logits_into_probabilities(classifier):
    texts = [text for text, _ in reviews(10, random.Random(4))]
    raw = torch.tensor([ask(make_sentiment_reward(classifier, name), texts) for name in ("NEGATIVE", "POSITIVE")])
    softmax = ask(make_sentiment_reward(classifier, function_to_apply="softmax"), texts)
    sigmoid = ask(make_sentiment_reward(classifier, function_to_apply="sigmoid"), texts)
    assert softmax == pytest.approx(torch.softmax(raw, 0)[1].tolist(), abs=1e-5)
    assert sigmoid == pytest.approx(torch.sigmoid(raw)[1].tolist(), abs=1e-5)


def test_sentiment_reads_the_prompt_unless_told_otherwise(classifier):
    prompts, completions = ["the film was superb and"] * 2, [" dull", " lovely"]
    both, completion = make_sentiment_reward(classifier), make_sentiment_reward(classifier, text="completion")
    joined = [prompt + text for prompt, text in zip(prompts, completions, strict=True)]
    assert ask(both, completions, prompts) == pytest.approx(ask(both, joined), abs=1e-6)
    assert ask(completion, completions, prompts) == pytest.approx(ask(both, completions), abs=1e-6)
    assert ask(both, completions, prompts) != pytest.approx(ask(completion, completions, prompts), abs=1e-2)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_sentiment_does_not_depend_on_the_batch(classifier, batch_size):
    texts = [text for text, _ in reviews(16, random.Random(5))] + ["good", "", "bad " * 15]
    expected = ask(make_sentiment_reward(classifier), texts)
    rewards = ask(make_sentiment_reward(classifier, batch_size=batch_size), texts)
    assert rewards == pytest.approx(expected, abs=1e-5)
    backwards = ask(make_sentiment_reward(classifier, batch_size=batch_size), texts[::-1])
    assert backwards[::-1] == pytest.approx(expected, abs=1e-5)


def test_sentiment_is_the_same_every_time(classifier):
    texts = [text for text, _ in reviews(16, random.Random(6))]
    reward = make_sentiment_reward(classifier)
    assert ask(reward, texts) == ask(reward, texts) == ask(make_sentiment_reward(classifier), texts)


def test_sentiment_of_nothing(classifier):
    reward = make_sentiment_reward(classifier)
    assert ask(reward, []) == []
    assert ask(reward, [""]) == pytest.approx(raw_logits(classifier, [""], "POSITIVE").tolist(), abs=1e-5)


def test_sentiment_cuts_texts_at_the_models_longest(classifier):
    start = "the film was superb and " * 4 + "good music"  # 22 words and two special tokens
    reward = make_sentiment_reward(classifier)
    whole, longer = ask(reward, [start, start + " awful" * 500])
    assert longer == pytest.approx(whole, abs=1e-5)


def test_sentiment_leaves_out_texts_without_tokens(tmp_path):
    config = GPT2Config(vocab_size=len(VOCABULARY), n_embd=16, n_layer=1, n_head=2, n_positions=16)
    config.bos_token_id = config.eos_token_id = None
    folder = save(tmp_path, GPT2ForSequenceClassification(config), words_tokenizer(special=False))
    reward = make_sentiment_reward(folder, label="label_1")
    rewards = ask(reward, ["good film", "", "   ", "bad " * 40])
    assert rewards[1] is None and rewards[2] is None
    expected = raw_logits(folder, ["good film", "bad " * 16], "LABEL_1").tolist()
    assert [rewards[0], rewards[3]] == pytest.approx(expected, abs=1e-5)
    assert ask(reward, ["", ""]) == [None, None]


def test_longest_text_knows_where_roberta_begins_to_count(tmp_path):
    config = RobertaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=18,
        pad_token_id=1,
    )
    model = RobertaForSequenceClassification(config)
    folder = save(tmp_path, model, words_tokenizer(pad_token="[UNK]"))
    assert longest_text(model, AutoTokenizer.from_pretrained(folder)) == 16
    assert ask(make_sentiment_reward(folder, label="LABEL_0"), ["good " * 100])[0] is not None


def test_longest_text_is_the_smaller_of_two_limits(tmp_path):
    model = DistilBertForSequenceClassification(distilbert_config(["A", "B"]))
    assert longest_text(model, words_tokenizer()) == LONGEST
    assert longest_text(model, words_tokenizer(model_max_length=10)) == 10
    assert longest_text(model, words_tokenizer(model_max_length=512)) == LONGEST


def test_find_label_names_those_there_are():
    names = {0: "negative", 1: "Positive", 2: "POSITIVE"}
    assert find_label(names, "NEGATIVE") == "negative" and find_label(names, "POSITIVE") == "POSITIVE"
    for wrong in ("1", "LABEL_1", "positive", ""):  # "positive" fits two
        with pytest.raises(ConfigError, match="label: expected one of negative, Positive, POSITIVE, got "):
            find_label(names, wrong)


def test_sentiment_refuses_a_model_without_a_trained_head(tmp_path):
    folder = save(tmp_path, DistilBertForMaskedLM(distilbert_config(["A", "POSITIVE"])), words_tokenizer())
    with pytest.raises(ModelError, match=r"expected a trained classifier at .*, got no weights for classifier\.bias"):
        make_sentiment_reward(folder)


def test_sentiment_opens_no_pickles(classifier, tmp_path):
    config = distilbert_config(["NEGATIVE", "POSITIVE"])
    model = DistilBertForSequenceClassification(config)
    config.save_pretrained(tmp_path)
    words_tokenizer().save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="expected a text classifier in safetensors at"):
        make_sentiment_reward(str(tmp_path))


def test_sentiment_names_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=f"expected a text classifier in safetensors at {tmp_path}/missing"):
        make_sentiment_reward(str(tmp_path / "missing"))


def test_sentiment_runs_no_code_of_the_model(classifier, tmp_path):
    model, tokenizer = DistilBertForSequenceClassification(distilbert_config(["A", "POSITIVE"])), words_tokenizer()
    model.config.auto_map = {"AutoModelForSequenceClassification": "evil.Evil", "AutoConfig": "evil.Config"}
    model.config.model_type = "evil"
    folder = save(tmp_path, model, tokenizer)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\nclass Config: pass\n")
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"distilbert"', '"evil"'))
    with pytest.raises(ModelError):
        make_sentiment_reward(folder)
    assert not (tmp_path / "ran").exists()


def test_sentiment_names_the_extra_that_is_missing(classifier, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"expected torch to be installed: pip install 'jaxppo\[sentiment\]'"):
        make_sentiment_reward(classifier)


@pytest.mark.parametrize(
    ("option", "value"), [("function_to_apply", "tanh"), ("text", "prompt"), ("batch_size", 0), ("label", "GREAT")]
)
def test_sentiment_names_a_bad_option(classifier, option, value):
    with pytest.raises(ConfigError, match=f"^{option}: expected .*, got {value!r}$"):
        make_sentiment_reward(classifier, **{option: value})
