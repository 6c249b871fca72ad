"""A reward model as a reward function, against transformers and PEFT on each row alone."""

import json
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from jaxppo import hf
from jaxppo.errors import DataError, ModelError
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.registry import text_reward_model_loader
from jaxppo.reward_functions.reward_model import ModelReward, load_reward_adapter, load_reward_model, same_vocabulary
from jaxppo.reward_functions.score_head import RowScorer
from tests.data.test_preferences import word_tokenizer
from tests.nn.test_lora import CONFIGS as LORA_CONFIGS
from tests.nn.test_lora import bases, peft_adapted, random_adapter, torch_base  # noqa: F401 (a fixture)
from tests.reward_functions.test_score_head import our_scores, scores_alone
from tests.test_models import RAW, from_torch, torch, torch_model

EOS, PAD = 2, 1
WORDS = ["w0", "<pad>", "<eos>", *[f"w{i}" for i in range(3, 61)]]
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
OTHER_WORDS = [*WORDS[:2:-1], "<end>", "<pad>"]

# Prompt and completion of each row, by the ids of WORDS; the end of sequence closes a completion that was not cut.
ROWS = [
    ([11, 12, 13], [21, 22, 23, 24, 25, 26, 27]),
    ([11, 12, 13, 14, 15, 16], [31, 32, EOS]),
    ([17], [41, 42, 43, 44, EOS]),
    ([18, 19], [EOS]),
    ([18, 19, 20], []),
    ([11, 12], [21, PAD, 24, PAD]),
    ([33] * 20, [34, EOS]),
]

assert_close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


def text(ids):
    return " ".join(WORDS[i] for i in ids)


def arguments(rows):
    """What TRL calls a reward function with: completions come as text without the end that closes them."""
    bodies = [completion[:-1] if completion[-1:] == [EOS] else completion for _, completion in rows]
    return {
        "prompts": [text(prompt) for prompt, _ in rows],
        "completions": [" " + text(body) if body else "" for body in bodies],
        "completion_ids": [completion for _, completion in rows],
        "level": [7] * len(rows),  # another column of the data
    }


def prompt_ids(rows):
    return [prompt for prompt, _ in rows]


@pytest.fixture(scope="module")
def policy_tokenizer():
    return word_tokenizer(WORDS)


@pytest.fixture(scope="module", params=list(RAW))
def saved(request, tmp_path_factory, policy_tokenizer):
    """(transformers model, folder) of a reward model that shares the policy's vocabulary."""
    folder, model = tmp_path_factory.mktemp("reward") / "my-rm", torch_model(RAW[request.param], head="score")
    from_torch(model, folder, RAW[request.param] | ONE_LABEL)
    policy_tokenizer.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def parallel():
    return DataParallel()


def test_ids_are_scored_as_they_come(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel)
    assert reward.shares_vocabulary and reward.__name__ == "my-rm"
    scores = reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS))
    assert all(type(score) is float for score in scores) and np.ptp(scores) > 0.5
    assert_close(scores, scores_alone(model, ROWS))
    config, params = hf.load_pretrained(folder)
    short = ROWS[:6]
    expected = our_scores(params, short, PAD, config)
    assert_close(scores[:6], expected)


def test_prompts_are_tokenised_where_no_ids_are_given(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel)
    assert_close(reward(**arguments(ROWS)), scores_alone(model, ROWS))
    # Where there are ids, the text does not matter.
    unreadable = arguments(ROWS) | {"prompts": ["zebra"] * 7, "completions": ["zebra"] * 7}
    assert_close(reward(**unreadable, prompt_ids=prompt_ids(ROWS)), scores_alone(model, ROWS))
    with pytest.raises(DataError, match=r"^my-rm: expected text that the model's tokenizer can encode, got: "):
        reward(**unreadable)


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"])
def test_the_pad_token_does_not_matter(saved, parallel, pad):
    model, folder = saved
    reward = load_reward_model(str(folder), word_tokenizer(WORDS, pad=pad), parallel)
    assert reward.shares_vocabulary
    assert_close(reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS)), scores_alone(model, ROWS))


@pytest.fixture
def other(saved, tmp_path):
    """(transformers model, folder, tokenizer) of a reward model with a vocabulary of its own."""
    model, folder = saved
    shutil.copytree(folder, tmp_path / "other")
    tokenizer = word_tokenizer(OTHER_WORDS, eos="<end>")
    tokenizer.save_pretrained(tmp_path / "other")
    return model, tmp_path / "other", tokenizer


def test_another_vocabulary_scores_the_text(other, policy_tokenizer, parallel):
    model, folder, tokenizer = other
    reward = load_reward_model(str(folder), policy_tokenizer, parallel)
    assert not reward.shares_vocabulary
    rows = [ROWS[i] for i in (0, 1, 2, 3, 4, 6)]
    given = arguments(rows)
    # The text as transformers reads it; the end of sequence is the other tokenizer's, where the policy ended.
    ends = [" <end>" if completion[-1:] == [EOS] else "" for _, completion in rows]
    texts = [p + c + end for p, c, end in zip(given["prompts"], given["completions"], ends, strict=True)]
    assert len(set(ends)) == 2
    with torch.no_grad():
        expected = [float(model(**tokenizer(t, return_tensors="pt")).logits[0, 0]) for t in texts]
    scores = reward(**given, prompt_ids=prompt_ids(rows))
    assert_close(scores, expected)
    # Another token that ends the policy's completions closes the text in the same way.
    otherwise = given | {"completion_ids": [[9 if i == EOS else i for i in ids] for ids in given["completion_ids"]]}
    several = load_reward_model(str(folder), policy_tokenizer, parallel, policy_end_ids=(EOS, 9))
    assert_close(several(**otherwise, prompt_ids=prompt_ids(rows)), expected)
    assert np.abs(np.array(scores) - scores_alone(model, rows)).max() > 0.1  # or the ids would do


def test_ids_that_the_policy_ended_in_another_way_end_as_the_model_has_learned(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, policy_end_ids=(EOS, 9))
    assert reward.shares_vocabulary
    given = arguments(ROWS)
    otherwise = given | {"completion_ids": [[9 if i == EOS else i for i in ids] for ids in given["completion_ids"]]}
    assert otherwise != given
    assert_close(reward(**otherwise, prompt_ids=prompt_ids(ROWS)), scores_alone(model, ROWS))


def test_texts_begin_as_the_tokenizer_begins_them(saved, parallel):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.add_special_tokens({"bos_token": "w9"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="w9 $A", special_tokens=[("w9", 9)])
    config, params = hf.load_pretrained(saved[1])
    reward = ModelReward(config, params, tokenizer, parallel=parallel)
    assert reward.encode(["w5 w6"]) == [tokenizer("w5 w6")["input_ids"]]
    assert len(reward.encode(["w5 w6"])[0]) == 3


def test_same_vocabulary_compares_tokens_and_end(policy_tokenizer):
    assert same_vocabulary(policy_tokenizer, word_tokenizer(WORDS))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer(WORDS, eos="w9"))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer([*WORDS, "more"]))
    assert not same_vocabulary(policy_tokenizer, word_tokenizer([*WORDS[:3], *WORDS[:2:-1]]))


def test_append_eos_ends_every_row_once(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, append_eos=True)
    ended = [(prompt, c if c[-1:] == [EOS] else [*c, EOS]) for prompt, c in ROWS]
    scores = reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS))
    assert_close(scores, scores_alone(model, ended))
    assert abs(scores[0] - scores_alone(model, ROWS)[0]) > 0.01


@pytest.mark.parametrize(("batch_size", "devices"), [(1, 1), (3, 4), (64, 1)])
def test_order_batch_size_and_devices_do_not_matter(saved, policy_tokenizer, batch_size, devices):
    model, folder = saved
    parallel = DataParallel(devices=jax.local_devices()[:devices])
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, batch_size=batch_size)
    order = [4, 0, 6, 3, 1, 5, 2]
    rows = [ROWS[i] for i in order]
    np.testing.assert_allclose(
        reward(**arguments(rows), prompt_ids=prompt_ids(rows)), scores_alone(model, ROWS)[order], atol=1e-5, rtol=1e-5
    )


def test_pmap_gives_the_same_scores(saved, policy_tokenizer):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, DataParallel("pmap"))
    assert_close(reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS)), scores_alone(model, ROWS))


def test_no_rows_have_no_scores(saved, policy_tokenizer, parallel):
    reward = load_reward_model(str(saved[1]), policy_tokenizer, parallel)
    assert reward(prompts=[], completions=[], completion_ids=[], prompt_ids=[]) == []


def test_few_programs_serve_all_lengths(saved, policy_tokenizer, parallel, monkeypatch):
    config, params = hf.load_pretrained(saved[1])
    scorer, shapes = RowScorer(config, parallel, 64), set()
    dispatched = scorer._program
    monkeypatch.setattr(scorer, "_program", lambda p, ids, n: shapes.add(ids.shape) or dispatched(p, ids, n))
    for length in range(1, 49):
        scorer(params, [[5] * length] * 5)
    assert shapes == {(16, 16), (16, 24), (16, 32), (16, 48)}


def test_long_rows_lose_their_beginning_and_are_counted(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, max_length=8)
    logged = {}
    scores = reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS), log_metric=logged.__setitem__)
    assert_close(scores, scores_alone(model, [((p + c)[-8:], []) for p, c in ROWS]))
    assert logged == {"reward/truncated": 3.0}
    reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS))
    assert reward.truncated == 6


def test_gpt2_reads_as_many_tokens_as_it_has_positions(tmp_path, policy_tokenizer, parallel):
    model = torch_model(RAW["gpt2"], head="score")
    from_torch(model, tmp_path, RAW["gpt2"])
    policy_tokenizer.save_pretrained(tmp_path)
    reward = load_reward_model(str(tmp_path), policy_tokenizer, parallel)
    long = [([5, 6, 7] * 40, [8] * 20), ([9] * 127, [8])]
    assert_close(
        reward(**arguments(long), prompt_ids=prompt_ids(long)),
        scores_alone(model, [((p + c)[-128:], []) for p, c in long]),
    )
    assert reward.truncated == 1
    with pytest.raises(ModelError, match="max_length: expected at most 128 tokens"):
        load_reward_model(str(tmp_path), policy_tokenizer, parallel, max_length=129)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (([], []), "my-rm: expected a token in prompt or completion, got none in row 1"),
        (([3], [61]), "my-rm: expected ids below its vocab_size=61, got 61 in row 1"),
    ],
)
def test_what_cannot_be_scored_is_an_error(saved, policy_tokenizer, parallel, row, message):
    reward = load_reward_model(str(saved[1]), policy_tokenizer, parallel)
    given = arguments(ROWS[:1]) | {"completion_ids": [[5], row[1]], "prompts": ["w3", ""], "completions": ["", ""]}
    with pytest.raises(DataError, match=f"^{message}$"):
        reward(**given, prompt_ids=[[3], row[0]])


def test_the_stored_bias_is_subtracted_and_transformers_passes_over_it(saved, tmp_path, policy_tokenizer, parallel):
    transformers = pytest.importorskip("transformers")
    model, folder = saved
    shutil.copytree(folder, tmp_path / "biased")
    config, params = hf.load_pretrained(folder)
    biased = hf.config_from_hf(hf.config_to_hf(config, "score") | {hf.REWARD_BIAS: 1.5})
    hf.save_pretrained(tmp_path / "biased", biased, params, policy_tokenizer)
    reward = load_reward_model(str(tmp_path / "biased"), policy_tokenizer, parallel)
    assert reward.bias == 1.5
    plain = scores_alone(model, ROWS)
    assert_close(reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS)), plain - 1.5)
    reloaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "biased")
    assert_close(scores_alone(reloaded, ROWS), plain)


def test_bfloat16_is_close(saved, policy_tokenizer, parallel):
    model, folder = saved
    reward = load_reward_model(str(folder), policy_tokenizer, parallel, dtype="bfloat16")
    scores = np.array(reward(**arguments(ROWS), prompt_ids=prompt_ids(ROWS)))
    difference = np.abs(scores - scores_alone(model, ROWS)).max()
    assert 1e-4 < difference < 0.3


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_score(folder):
    from safetensors.numpy import load_file, save_file

    tensors = {name: t for name, t in load_file(folder / "model.safetensors").items() if name != "score.weight"}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def two_labels(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = np.repeat(tensors["score.weight"], 2, axis=0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: edit_config(f, architectures=["GPTNeoXForCausalLM"]), "expected a reward model .*, got one without"),
        (without_score, "expected a trained score head, got no tensor score.weight"),
        (two_labels, r"score.weight: expected shape \(1, 32\), got \(2, 32\)"),
        (lambda f: (f / "tokenizer.json").unlink(), "expected a tokenizer "),
        (lambda f: edit_config(f, reward_bias="2"), "reward_bias: expected a finite number, got '2'"),
        (lambda f: word_tokenizer([*WORDS, "x"]).save_pretrained(f), "rm: expected at most vocab_size=61 tokens, got"),
    ],
)
def test_a_folder_that_is_no_reward_model_is_refused(tmp_path, policy_tokenizer, parallel, damage, message):
    from_torch(torch_model(RAW["gpt_neox"], head="score"), tmp_path / "rm", RAW["gpt_neox"])
    policy_tokenizer.save_pretrained(tmp_path / "rm")
    damage(tmp_path / "rm")
    with pytest.raises(ModelError, match=message) as caught:
        load_reward_model(str(tmp_path / "rm"), policy_tokenizer, parallel)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- adapter on a base

SHAPE = LoraConfig(r=4, lora_alpha=8)


@pytest.mark.parametrize("family", LORA_CONFIGS)
def test_an_adapter_scores_as_in_peft_and_shares_the_base(family, bases, tmp_path, policy_tokenizer, parallel):  # noqa: F811
    folder, params = bases[family, "score"]
    theirs = peft_adapted(folder, SHAPE, family, "score")
    theirs.save_pretrained(tmp_path / "adapter")
    config = LORA_CONFIGS[family]
    base = parallel.put({"trunk": params["trunk"], "lm_head": {"kernel": jnp.zeros((32, 61))}})  # a policy's
    reward = load_reward_adapter(str(tmp_path / "adapter"), config, base, policy_tokenizer, parallel)
    rows = [(prompt, completion) for prompt, completion in ROWS]
    with torch.no_grad():
        trunk = theirs.base_model.model.base_model
        hidden = [trunk(torch.tensor([p + c])).last_hidden_state for p, c in rows]
        expected = [float(theirs.base_model.model.score(h)[0, -1, 0]) for h in hidden]
    scores = reward(**arguments(rows), prompt_ids=prompt_ids(rows))
    assert_close(scores, expected)
    assert np.ptp(expected) > 0.5

    ours = dict(jax.tree_util.tree_leaves_with_path(reward.params["trunk"]))
    for path, array in jax.tree_util.tree_leaves_with_path(base["trunk"]):
        here, there = ([s.data.unsafe_buffer_pointer() for s in x.addressable_shards] for x in (ours[path], array))
        assert here == there, path
    assert "lm_head" not in reward.params


def test_an_adapter_comes_with_its_bias_and_a_score_head(bases, tmp_path, policy_tokenizer, parallel):  # noqa: F811
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
    given = arguments(ROWS) | {"prompt_ids": prompt_ids(ROWS)}
    assert_close(biased(**given), np.array(plain(**given)) + 0.25)
    with pytest.raises(ModelError, match=r"headless: expected a score head \(task SEQ_CLS\) beside the adapter, got n"):
        load(str(tmp_path / "headless"), base=base)
    with pytest.raises(ModelError, match="expected an adapter of this base"):
        load(str(tmp_path / "plain"), base=jax.tree.map(jnp.zeros_like, base))


def test_a_reward_model_needs_an_end_of_sequence(saved, parallel):
    config, params = hf.load_pretrained(saved[1])
    tokenizer = word_tokenizer(WORDS)
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"^mine: expected a tokenizer with an eos_token, got none$"):
        ModelReward(config, params, tokenizer, parallel=parallel, name="mine")


def test_without_a_policy_whole_texts_are_scored_with_their_end(saved, parallel, policy_tokenizer):
    _, folder = saved
    given = arguments(ROWS)
    scores = text_reward_model_loader(parallel)(str(folder))(given["prompts"], given["completions"], [[]] * len(ROWS))
    ids = policy_tokenizer([p + c for p, c in zip(given["prompts"], given["completions"], strict=True)])["input_ids"]
    reward = load_reward_model(str(folder), policy_tokenizer, parallel)
    ended = [row if row[-1:] == [EOS] else [*row, EOS] for row in ids]
    assert_close(scores, reward(given["prompts"], given["completions"], ended, prompt_ids=[[]] * len(ROWS)))
