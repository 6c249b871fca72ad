"""Decoding that goes on with fewer rows, and prompts read in parts, against one loop over all rows at once."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.platform import Platform, compiling_for
from jaxppo.rl import rollout
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "initializer_range": 0.4}
NEOX = GPTNeoXConfig(**SIZES, num_attention_heads=2)
MODELS = {
    "gpt_neox": NEOX,
    "gpt2": GPT2Config(**SIZES, num_attention_heads=2, max_position_embeddings=64),
    "qwen3": LlamaConfig(**SIZES, model_type="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=8),
    "windows": LlamaConfig(**SIZES, model_type="mistral", num_attention_heads=2, sliding_window=6),
}
ROWS, PROMPT, LENGTH, PAD = 64, 8, 24, 31
STOP = (3, 5, 8, 13)  # an eighth of the vocabulary, so that rows end early, and not all at once


def prompts_of(count):
    rng = np.random.default_rng(7)
    mask = np.arange(PROMPT)[None] >= PROMPT - rng.integers(1, PROMPT + 1, count)[:, None]
    return PromptBatch(np.where(mask, rng.integers(0, 32, mask.shape, np.int32), PAD), mask)


def generate(model, prompts, seed=0, lengths=None, stop_ids=STOP, **options):
    params = models.init_params(model, jax.random.key(1))
    uniforms = np.random.default_rng(seed).random((ROWS, LENGTH), np.float32)
    program = partial(rollout.generate, model=model, stop_ids=stop_ids, pad_id=PAD, temperature=0.9, **options)
    return jax.device_get(jax.jit(program)(params, prompts, uniforms, lengths))


def assert_alike(one, other, logprobs_atol=1e-5):
    np.testing.assert_array_equal(one.completion_ids, other.completion_ids)
    np.testing.assert_array_equal(one.completion_mask, other.completion_mask)
    np.testing.assert_array_equal(one.ended, other.ended)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=logprobs_atol)


def drawn_rows(mask):
    """How many rows each step after the first computes: the powers of two that hold those not done yet."""
    lengths, now, steps = mask.sum(axis=1), ROWS, []
    for t in range(1, lengths.max()):
        live = int(np.sum(lengths > t))
        while now > rollout.FEWEST_ROWS and live <= now // 2:
            now //= 2
        steps.append(now)
    return steps


@pytest.mark.parametrize(
    ("num_rows", "counts"),
    [(64, (64, 32, 16, 8)), (48, (48, 32, 16, 8)), (9, (9, 8)), (8, (8,)), (5, (5,)), (256, (256, 128, 64, 32, 16, 8))],
)
def test_row_counts_are_all_rows_and_the_powers_of_two_below(num_rows, counts):
    assert rollout.row_counts(num_rows) == counts


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("groups", "limited"), [(ROWS, False), (ROWS // 2, True)])
def test_dropping_rows_changes_no_text(name, groups, limited):
    """With one and with two completions of a prompt; with and without lengths of their own."""
    lengths = np.random.default_rng(3).integers(1, LENGTH + 1, ROWS, np.int32) if limited else None
    given = (MODELS[name], prompts_of(groups), groups, lengths)
    together = generate(*given, drop_ended=False)
    assert_alike(generate(*given, drop_ended=True), together)
    steps = drawn_rows(together.completion_mask)
    assert {64, 32, 16} <= {*steps} and steps[0] == 64
    assert together.ended.mean() > 0.2 and not together.ended.all()


def test_no_more_rows_are_computed_than_the_next_power_of_two(monkeypatch):
    computed, apply = [], models.apply

    def spy(model, params, ids, **options):
        if ids.shape[1] == 1:
            jax.debug.callback(lambda: computed.append(ids.shape[0]))
        return apply(model, params, ids, **options)

    monkeypatch.setattr(models, "apply", spy)
    done = generate(NEOX, prompts_of(ROWS), drop_ended=True)
    jax.effects_barrier()
    assert computed == drawn_rows(done.completion_mask)
    computed.clear()
    generate(NEOX, prompts_of(ROWS), drop_ended=True, stop_ids=())  # nothing ends a row, so that none is dropped
    jax.effects_barrier()
    assert computed == [ROWS] * (LENGTH - 1)


def test_rows_are_dropped_by_default_on_accelerators_alone():
    params = jax.eval_shape(lambda: models.init_params(NEOX, jax.random.key(1)))
    loops = []
    for platform in (Platform("cpu", None), Platform("gpu", 2**30)):
        program = partial(rollout.generate, model=NEOX, stop_ids=STOP, pad_id=PAD, temperature=0.9)
        with compiling_for(platform):
            traced = jax.make_jaxpr(program)(params, prompts_of(ROWS), np.zeros((ROWS, LENGTH), np.float32))
        loops.append(sum(equation.primitive.name == "while" for equation in traced.eqns))
    assert loops == [1, 4]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("groups", [ROWS, ROWS // 2])
def test_prompts_read_in_parts_give_the_same_texts(name, groups):
    given = (MODELS[name], prompts_of(groups), groups)
    whole = generate(*given)
    for part in (1, 4, ROWS // 2):
        assert_alike(generate(*given, prompts_at_once=part), whole)


MODES = {
    "shard_map": ("shard_map", None),
    "pmap": ("pmap", None),
    "fsdp": ("fsdp", "fsdp=4"),
    "tensor": ("fsdp", "fsdp=2,tensor=2"),
}


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_generations", [1, 2])
def test_every_device_drops_rows_of_its_own(mode, num_generations):
    algorithm = {"algorithm": "rloo", "num_generations": num_generations} if num_generations > 1 else {}
    config = replace(TrainConfig(), batch_size=ROWS, response_length=LENGTH, total_episodes=ROWS, **algorithm)
    config = replace(config, output_min_length=1)
    policy = jax.device_get(models.init_params(NEOX, jax.random.key(1)))
    value = None if algorithm else jax.device_get(models.init_params(NEOX, jax.random.key(2), "score"))

    def sample(parallel, drop):
        ppo = PPO(replace(config, drop_ended_rows=drop), NEOX, 3, PAD, parallel)
        state = ppo.init_state(policy, value)
        return parallel.to_host(ppo.generate(state, prompts_of(ROWS // num_generations), 0))

    together = sample(DataParallel(devices=jax.devices()[:1]), False)
    assert_alike(sample(DataParallel(MODES[mode][0], mesh=MODES[mode][1]), True), together)
    per_device = together.completion_mask.sum(axis=1).reshape(4 if mode != "tensor" else 2, -1)
    half = np.sort(per_device, axis=1)[:, -(per_device.shape[1] // 2) - 1]
    assert len({*half}) > 1 and np.all(half < LENGTH)  # rows were dropped on every device, not at the same time


def test_a_model_that_cannot_end_drops_no_rows():
    config = replace(TrainConfig(), batch_size=ROWS, response_length=4, total_episodes=ROWS, drop_ended_rows=True)
    state = jax.eval_shape(lambda: models.init_params(NEOX, jax.random.key(1)))
    prompts = PromptBatch(jnp.zeros((ROWS, 8), jnp.int32), jnp.ones((ROWS, 8), bool))
    given = (state, prompts, jnp.zeros((ROWS, 4)), jnp.full((ROWS,), 4, jnp.int32))

    def loops(**settings):
        ppo = PPO(replace(config, **settings), NEOX, 3, PAD, DataParallel(devices=jax.devices()[:1]))
        return ppo._generate.lower(*given).as_text().count("stablehlo.while")

    assert loops() == 4
    assert loops(stop_token="none") == 1
    assert loops(stop_token="none", output_min_length=2) == 4


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_what_is_sampled_in_parts_is_what_the_model_says(dtype):
    """Log-probabilities of what was drawn, by one pass over whole texts."""
    model = dataclasses.replace(NEOX, compute_dtype=dtype)
    prompts = prompts_of(ROWS)
    done = generate(model, prompts, drop_ended=True, prompts_at_once=8)
    sequences = rollout.to_sequences(prompts, done, length=PROMPT + LENGTH)
    params = models.init_params(model, jax.random.key(1))
    expected, _ = rollout.completion_logprobs(params, sequences, model=model, temperature=0.9)
    np.testing.assert_allclose(done.logprobs, expected, atol=1e-4 if dtype is None else 0.1)
