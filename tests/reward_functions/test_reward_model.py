"""A reward model as a reward function: which ids it scores, and its scores against transformers and PEFT."""

import dataclasses
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from jaxppo import hf
from jaxppo.errors import DataError, ModelError
from jaxppo.nn import ModelSource
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions import reward_model
from jaxppo.reward_functions.registry import reward_model_loader, text_reward_model_loader
from jaxppo.reward_functions.reward_model import ModelReward, load_reward_adapter, load_reward_model, same_vocabulary
from tests.data.tokenizers import chat_tokenizer, word_tokenizer
from tests.peft_models import LORA_CONFIGS, bases, peft_adapted, random_adapter  # noqa: F401 (a fixture)
from tests.torch_models import RAW, edit_config, edit_tensors, from_torch, torch, torch_model, transformers

EOS, PAD = 2, 1
WORDS = ["w0", "<pad>", "<eos>", *[f"w{i}" for i in range(3, 61)]]
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
RAW_NEOX = RAW["gpt_neox"] | ONE_LABEL | {"num_hidden_layers": 1}
OTHER_WORDS = [*WORDS[:2:-1], "<end>", "<pad>"]

# Prompt and completion of each row, by the ids of WORDS; the end of sequence closes a completion that was not cut.
ROWS = [
    ([11, 12, 13], [21, 22, 23, 24, 25, 26, 27]),
    ([11, 12, 13, 14, 15, 16], [31, 32, EOS]),
    ([17], [41, 42, 43, 44, EOS]),
    ([18, 19], [EOS]),
    ([18, 19, 20], []),
    ([11, 12], [21, PAD, 24, PAD]),
    ([33] * 13, [34, EOS]),
]
IDS = [prompt + completion for prompt, completion in ROWS]

assert_close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


def text(ids):
    return " ".join(WORDS[i] for i in ids)


def arguments(rows, **others):
    """What TRL calls a reward function with: completions come as text without the end that closes them."""
    bodies = [completion[:-1] if completion[-1:] == [EOS] else completion for _, completion in rows]
    return {
        "prompts": [text(prompt) for prompt, _ in rows],
        "completions": [" " + text(body) if body else "" for body in bodies],
        "completion_ids": [completion for _, completion in rows],
        "prompt_ids": [prompt for prompt, _ in rows],
        "level": [7] * len(rows),  # another column of the data
        **others,
    }


def ended_by(given, token):
    ids = [[token if i == EOS else i for i in completion] for completion in given["completion_ids"]]
    assert ids != given["completion_ids"]
    return given | {"completion_ids": ids}


def scores_alone(model, rows):
    """Score at the last token of each row, each in a batch of its own, where nothing is padded."""
    trunk = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        return np.array([float(model.score(trunk(torch.tensor([row])).last_hidden_state)[0, -1, 0]) for row in rows])


@pytest.fixture(scope="module")
def policy_tokenizer():
    return word_tokenizer(WORDS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, policy_tokenizer):
    """(transformers model, folder) of a reward model that shares the policy's vocabulary."""
    folder, model = tmp_path_factory.mktemp("reward") / "my-rm", torch_model(RAW_NEOX, head="score")
    from_torch(model, folder, RAW_NEOX)
    policy_tokenizer.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def parallel():
    return DataParallel()


class Numbering:
    """Stands for the model: the score of a row is its number. Remembers the rows."""

    seen: list

    def __init__(self, *_):
        pass

    def __call__(self, params, rows):
        Numbering.seen = [list(row) for row in rows]
        return np.arange(len(rows), dtype=np.float32)


@pytest.fixture
def rows_of(monkeypatch):
    """From a reward model, loaded with this fixture, and its arguments to the rows of ids that it scores."""
    monkeypatch.setattr(reward_model, "RowScorer", Numbering)

    def find(reward, given, **others):
        scores = reward(**given | others)
        np.testing.assert_allclose(scores, np.arange(len(scores)) - getattr(reward, "bias", 0.0))
        return Numbering.seen

    return find


def test_ids_are_scored_as_they_come(rows_of, saved, policy_tokenizer, parallel):
    reward = load_reward_model(str(saved[1]), policy_tokenizer, parallel)
    assert reward.shares_vocabulary and reward.__name__ == "my-rm"
    given = arguments(ROWS)
    assert rows_of(reward, given) == IDS
    assert rows_of(reward, given, prompt_ids=None) == IDS  # prompts are tokenised where none are given
    unreadable = given | {"prompts": ["zebra"] * 7, "completions": ["zebra"] * 7}
    assert rows_of(reward, unreadable) == IDS  # where there are ids, the text does not matter
    with pytest.raises(DataError, match=r"^my-rm: .*zebra|^my-rm: .*encode"):
        reward(**unreadable | {"prompt_ids": None})
    other_pad = load_reward_model(str(saved[1]), word_tokenizer(WORDS, pad="<eos>"), parallel)
    assert other_pad.shares_vocabulary and rows_of(other_pad, given) == IDS


def test_another_vocabulary_scores_the_text(rows_of, saved, policy_tokenizer, parallel, tmp_path):
    shutil.copytree(saved[1], tmp_path / "other")
    tokenizer = word_tokenizer(OTHER_WORDS, eos="<end>")
    tokenizer.save_pretrained(tmp_path / "other")
    reward = load_reward_model(str(tmp_path / "other"), policy_tokenizer, parallel)
    assert not reward.shares_vocabulary
    rows = [row for row in ROWS if PAD not in row[1]]  # whose word the other tokenizer has not
    given = arguments(rows)
    # The text as transformers reads it; the end of sequence is the other tokenizer's, where the policy ended.
    ends = [" <end>" if completion[-1:] == [EOS] else "" for _, completion in rows]
    texts = [p + c + end for p, c, end in zip(given["prompts"], given["completions"], ends, strict=True)]
    expected = [tokenizer(each)["input_ids"] for each in texts]
    assert len(set(ends)) == 2 and expected != [prompt + completion for prompt, completion in rows]
    assert rows_of(reward, given) == expected
    # Another token that ends the policy's completions closes the text in the same way.
    several = load_reward_model(str(tmp_path / "other"), policy_tokenizer, parallel, policy_end_ids=(EOS, 9))
    assert rows_of(several, ended_by(given, 9)) == expected
    assert same_vocabulary(policy_tokenizer, word_tokenizer(WORDS))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer(WORDS, eos="w9"))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer([*WORDS, "more"]))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer([*WORDS[:3], *WORDS[:2:-1]]))


def test_rows_end_as_learned(rows_of, saved, policy_tokenizer, parallel):
    load = partial(load_reward_model, str(saved[1]), policy_tokenizer, parallel)
    # Where the policy ended in another way, and with `append_eos` everywhere, once.
    assert rows_of(load(policy_end_ids=(EOS, 9)), ended_by(arguments(ROWS), 9)) == IDS
    ended = [row if row[-1:] == [EOS] else [*row, EOS] for row in IDS]
    assert rows_of(load(append_eos=True), arguments(ROWS)) == ended != IDS
    # Where there is no policy, whole texts are scored, with their end.
    given = arguments(ROWS)
    without_policy = text_reward_model_loader(parallel)(str(saved[1]))
    assert rows_of(without_policy, {name: given[name] for name in ("prompts", "completions")}) == ended


def test_texts_begin_as_the_tokenizer_begins_them_and_need_an_end(rows_of, saved, parallel):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.add_special_tokens({"bos_token": "w9"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="w9 $A", special_tokens=[("w9", 9)])
    reward = ModelReward(*hf.load_pretrained(saved[1]), tokenizer, parallel=parallel)
    assert reward.encode(["w5 w6"]) == [tokenizer("w5 w6")["input_ids"]] == [[9, 5, 6]]
    tokenizer = word_tokenizer(WORDS)
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"^mine: .*eos_token"):
        ModelReward(*hf.load_pretrained(saved[1]), tokenizer, parallel=parallel, name="mine")


def test_a_model_of_another_vocabulary_reads_turns_by_its_own_template(rows_of, saved, policy_tokenizer, parallel):
    tokenizer = chat_tokenizer()
    reward = ModelReward(*hf.load_pretrained(saved[1]), tokenizer, parallel=parallel, policy_tokenizer=policy_tokenizer)
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "on a"},
        {"role": "assistant", "content": "stack a"},
        {"role": "user", "content": "on b"},
    ]
    given = {"prompts": ["on b"] * 3, "completions": ["unstack b a"] * 3, "completion_ids": [[5, EOS], [5], [5, EOS]]}
    rows = rows_of(reward, given | {"prompt_ids": [[3]] * 3, "messages": [turns, turns, None]})
    answer = {"role": "assistant", "content": "unstack b a"}
    whole, plain = (
        tokenizer.apply_chat_template([*before, answer], tokenize=True, return_dict=False)
        for before in (turns, turns[-1:])
    )
    assert rows == [whole, whole[:-1], plain]  # a completion that was cut has no end
    assert "chat template" in reward.reads


def test_a_model_of_another_vocabulary_gets_the_system_turn_of_the_policy(saved, policy_tokenizer, parallel, tmp_path):
    model, params = hf.load_pretrained(saved[1])
    tokenizer = chat_tokenizer()
    hf.save_pretrained(tmp_path / "chat", model, params, tokenizer)
    policy = dataclasses.replace(model, source=ModelSource())
    load = reward_model_loader(policy, params, policy_tokenizer, parallel, (EOS,), "be brief")
    reward, seen = load(str(tmp_path / "chat")), []
    encode = reward.encode
    reward.encode = lambda texts: seen.extend(texts) or encode(texts)
    reward(["on b"], ["unstack b a"], [[5, EOS]], prompt_ids=[[3]], messages=[[{"role": "user", "content": "on b"}]])
    assert "be brief" in seen[0] and "be brief" in reward.reads


@pytest.mark.parametrize(("row", "named"), [(([], []), "row 1"), (([3], [61]), "vocab_size=61.* 61 in row 1")])
def test_what_cannot_be_scored_is_an_error(rows_of, saved, policy_tokenizer, parallel, row, named):
    reward = load_reward_model(str(saved[1]), policy_tokenizer, parallel)
    with pytest.raises(DataError, match=f"^my-rm: .*{named}"):
        reward([""] * 2, [""] * 2, [[5], row[1]], prompt_ids=[[3], row[0]])


@pytest.mark.parametrize(
    ("mode", "batch_size", "devices"), [("shard_map", 64, 4), ("shard_map", 1, 1), ("shard_map", 3, 4), ("pmap", 64, 4)]
)
def test_scores_are_those_of_rows_alone_in_any_order(saved, policy_tokenizer, mode, batch_size, devices):
    model, folder = saved
    parallel = DataParallel(mode, devices=jax.local_devices()[:devices])
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, batch_size=batch_size)
    order = [4, 0, 6, 3, 1, 5, 2]
    scores = reward(**arguments([ROWS[i] for i in order]))
    assert all(type(score) is float for score in scores) and np.ptp(scores) > 0.5
    np.testing.assert_allclose(scores, scores_alone(model, IDS)[order], atol=1e-5, rtol=1e-5)
    assert reward(prompts=[], completions=[], completion_ids=[], prompt_ids=[]) == []
    if batch_size == 1:
        reward = load_reward_model(str(folder), policy_tokenizer, parallel, dtype="bfloat16")
        assert 1e-4 < np.abs(np.array(reward(**arguments(ROWS))) - scores_alone(model, IDS)).max() < 0.3


def test_gpt2_reads_as_many_tokens_as_it_has_positions(tmp_path, policy_tokenizer, parallel):
    raw = RAW["gpt2"] | {"n_layer": 1, "n_positions": 24}
    model = torch_model(raw, head="score")
    from_torch(model, tmp_path, raw)
    policy_tokenizer.save_pretrained(tmp_path)
    reward = load_reward_model(str(tmp_path), policy_tokenizer, parallel)
    rows = [([5, 6, 7] * 8, [8] * 4), ([9] * 23, [8])]
    logged = {}
    scores = reward(**arguments(rows), log_metric=logged.__setitem__)
    assert_close(scores, scores_alone(model, [(p + c)[-24:] for p, c in rows]))
    assert logged == {"reward/truncated": 1.0}


def test_the_stored_bias_is_subtracted_and_transformers_passes_over_it(
    rows_of, saved, tmp_path, policy_tokenizer, parallel
):
    model, folder = saved
    shutil.copytree(folder, tmp_path / "biased")
    config, params = hf.load_pretrained(folder)
    biased = hf.config_from_hf(hf.config_to_hf(config, "score") | {hf.REWARD_BIAS: 1.5})
    hf.save_pretrained(tmp_path / "biased", biased, params, policy_tokenizer)
    reward = load_reward_model(str(tmp_path / "biased"), policy_tokenizer, parallel)
    assert reward.bias == 1.5 and rows_of(reward, arguments(ROWS)) == IDS
    reloaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "biased")
    assert_close(scores_alone(reloaded, IDS), scores_alone(model, IDS))


def edit_head(folder, kernel):
    edit_tensors(folder / "model.safetensors", {"score.weight": kernel})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: edit_config(f, architectures=["GPTNeoXForCausalLM"]), "rm: .*SequenceClassification"),
        (lambda f: edit_head(f, None), r"rm: .*score\.weight"),
        (lambda f: edit_head(f, np.ones((2, 32), np.float32)), r"score\.weight: .*\(1, 32\)"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: word_tokenizer([*WORDS, "x"]).save_pretrained(f), "rm: .*vocab_size=61"),
    ],
)
def test_a_folder_that_is_no_reward_model_is_refused(saved, tmp_path, policy_tokenizer, parallel, damage, named):
    shutil.copytree(saved[1], tmp_path / "rm")
    damage(tmp_path / "rm")
    with pytest.raises(ModelError, match=named) as caught:
        load_reward_model(str(tmp_path / "rm"), policy_tokenizer, parallel)
    assert "\n" not in str(caught.value)


SHAPE = LoraConfig(r=4, lora_alpha=8)


def test_an_adapter_scores_as_in_peft_and_shares_the_base(bases, tmp_path, policy_tokenizer, parallel):  # noqa: F811
    folder, params = bases["gpt_neox", "score"]
    theirs = peft_adapted(folder, SHAPE, "gpt_neox", "score")
    theirs.save_pretrained(tmp_path / "adapter")
    base = parallel.put({"trunk": params["trunk"], "lm_head": {"kernel": jnp.zeros((32, 61))}})  # a policy's
    config = LORA_CONFIGS["gpt_neox"]
    reward = load_reward_adapter(str(tmp_path / "adapter"), config, base, policy_tokenizer, parallel)
    with torch.no_grad():
        trunk = theirs.base_model.model.base_model
        hidden = [trunk(torch.tensor([row])).last_hidden_state for row in IDS]
        expected = [float(theirs.base_model.model.score(states)[0, -1, 0]) for states in hidden]
    assert_close(reward(**arguments(ROWS)), expected)
    assert np.ptp(expected) > 0.5

    ours = dict(jax.tree_util.tree_leaves_with_path(reward.params["trunk"]))
    for path, array in jax.tree_util.tree_leaves_with_path(base["trunk"]):
        pointers = [[s.data.unsafe_buffer_pointer() for s in x.addressable_shards] for x in (ours[path], array)]
        assert pointers[0] == pointers[1], path
    assert "lm_head" not in reward.params


def test_an_adapter_comes_with_its_bias_and_a_score_head(rows_of, bases, tmp_path, policy_tokenizer, parallel):  # noqa: F811
    config = LORA_CONFIGS["gpt_neox"]
    folder, base = bases["gpt_neox", "lm"]
    adapter = random_adapter(config, SHAPE, score=True)
    save = partial(hf.peft.save_adapter, config=config, lora=SHAPE, base=base, base_model=str(folder))
    save(tmp_path / "plain", adapter=adapter)
    save(tmp_path / "biased", adapter=adapter, reward_bias=-0.25)
    save(tmp_path / "headless", adapter={"trunk": adapter["trunk"]})
    load = partial(load_reward_adapter, model=config, tokenizer=policy_tokenizer, parallel=parallel)
    plain, biased = (load(str(tmp_path / name), base=base) for name in ("plain", "biased"))
    assert (plain.bias, biased.bias, biased.__name__) == (0.0, -0.25, "biased")
    assert rows_of(plain, arguments(ROWS)) == rows_of(biased, arguments(ROWS)) == IDS
    with pytest.raises(ModelError, match=r"headless: .*score head"):
        load(str(tmp_path / "headless"), base=base)
    with pytest.raises(ModelError, match="adapter of this base"):
        load(str(tmp_path / "plain"), base=jax.tree.map(jnp.zeros_like, base))
