"""Decoding that goes on with fewer rows, and prompts read in parts, against one loop over all rows at once."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn import Computation
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.parallel import partition
from jaxppo.parallel.devices import DataParallel
from jaxppo.parallel.platform import Platform, compiling_for
from jaxppo.rl import rollout
from jaxppo.rl.learner import PPO
from jaxppo.types import PromptBatch

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32, "initializer_range": 0.4}
NEOX = GPTNeoXConfig(**SIZES, num_attention_heads=2)
GPT2 = GPT2Config(**SIZES, num_attention_heads=2, max_position_embeddings=64)
QWEN3 = LlamaConfig(**SIZES, model_type="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=8)
WINDOWS = LlamaConfig(
    **SIZES, model_type="mistral", num_attention_heads=2, num_key_value_heads=2, head_dim=8, sliding_window=6
)
ROWS, PROMPT, LENGTH, PAD = 32, 8, 24, 31
STOP = (3, 5, 8, 13)  # an eighth of the vocabulary, so that rows end early, and not all at once
NEVER = (-1,) * 4

APPLY = models.apply
COMPUTED: list[int] = []
"""How many rows each decoding step has computed."""


@pytest.fixture(scope="module", autouse=True)
def _count_rows():
    def spy(model, params, ids, **options):
        if ids.shape[1] == 1:
            jax.debug.callback(lambda: COMPUTED.append(ids.shape[0]))
        return APPLY(model, params, ids, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "apply", spy)
        yield


def prompts_of(count):
    rng = np.random.default_rng(7)
    mask = np.arange(PROMPT)[None] >= PROMPT - rng.integers(1, PROMPT + 1, count)[:, None]
    return PromptBatch(np.where(mask, rng.integers(0, 32, mask.shape, np.int32), PAD), mask)


OPTIONS = ("model", "drop_ended", "prompts_at_once")
program = jax.jit(partial(rollout.generate, pad_id=PAD, temperature=0.9), static_argnames=OPTIONS)
completion_logprobs = jax.jit(partial(rollout.completion_logprobs, temperature=0.9), static_argnames="model")


@cache
def decoded(model, copies=1, limited=False, rows=ROWS, stop_ids=STOP, **options):
    """Prompts, a rollout of them, and how many rows each step after the first computed."""
    COMPUTED.clear()
    rng = np.random.default_rng(0)
    prompts, uniforms = prompts_of(rows // copies), rng.random((rows, LENGTH), np.float32)
    lengths = rng.integers(1, LENGTH + 1, rows, np.int32) if limited else None
    params = models.init_params(model, jax.random.key(1))
    result = program(params, prompts, uniforms, lengths, model=model, stop_ids=stop_ids, **options)
    jax.effects_barrier()
    return prompts, jax.device_get(result), list(COMPUTED)


def assert_alike(one, other):
    np.testing.assert_array_equal(one.completion_ids, other.completion_ids)
    np.testing.assert_array_equal(one.completion_mask, other.completion_mask)
    np.testing.assert_array_equal(one.ended, other.ended)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def loop_rows(mask):
    """How many rows each step after the first computes: the powers of two that hold those not done yet."""
    lengths, now, steps = mask.sum(axis=1), len(mask), []
    for t in range(1, lengths.max()):
        live = int(np.sum(lengths > t))
        while now > rollout.MIN_DECODED_ROWS and live <= now // 2:
            now //= 2
        steps.append(now)
    return steps


def test_row_counts_are_all_rows_and_the_powers_of_two_below():
    for counts in ((64, 32, 16, 8), (48, 32, 16, 8), (9, 8), (8,), (5,)):
        assert rollout.row_counts(counts[0]) == counts


@pytest.mark.parametrize(("copies", "limited", "at_once"), [(1, False, 8), (2, True, 1)])
def test_dropping_rows_and_reading_prompts_in_parts_change_no_text(copies, limited, at_once):
    """With one and with two completions of a prompt; with and without lengths of their own."""
    _, whole, computed = decoded(NEOX, copies, limited, drop_ended=False)
    assert {*computed} == {ROWS}
    _, in_parts, computed = decoded(NEOX, copies, limited, drop_ended=True, prompts_at_once=at_once)
    assert_alike(in_parts, whole)
    assert computed == loop_rows(whole.completion_mask)
    assert {32, 16, 8} <= {*computed} and computed[0] == 32
    assert whole.ended.mean() > 0.2 and not whole.ended.all()
    # Where no row ends, none is dropped.
    *_, computed = decoded(NEOX, stop_ids=NEVER, drop_ended=True, prompts_at_once=8)
    assert computed == [ROWS] * (LENGTH - 1)


@pytest.mark.parametrize(
    ("model", "copies", "limited", "at_once"),
    [
        (NEOX, 1, False, 8),
        (dataclasses.replace(NEOX, computation=Computation(dtype="bfloat16")), 1, True, 4),
        (GPT2, 2, False, 4),
        (QWEN3, 1, True, 8),
        (WINDOWS, 2, True, 1),
    ],
    ids=["gpt_neox", "bfloat16", "gpt2", "qwen3", "windows"],
)
def test_what_is_sampled_in_parts_is_what_the_model_says(model, copies, limited, at_once):
    """Log-probabilities of what was drawn, by one pass over whole texts."""
    rows = ROWS if model is NEOX else 16
    prompts, done, computed = decoded(model, copies, limited, rows, drop_ended=True, prompts_at_once=at_once)
    assert computed == loop_rows(done.completion_mask) and {16, 8} <= {*computed}
    sequences = rollout.to_sequences(prompts, done, length=PROMPT + LENGTH)
    params = models.init_params(model, jax.random.key(1))
    expected, _ = completion_logprobs(params, sequences, model=model)
    np.testing.assert_allclose(done.logprobs, expected, atol=1e-4 if model.computation.dtype is None else 0.1)


@pytest.mark.parametrize(
    ("platform", "stop_ids", "loops"),
    [(Platform("cpu", None), STOP, 1), (Platform("gpu", 2**30), STOP, 3), (Platform("gpu", 2**30), (), 1)],
)
def test_rows_are_dropped_by_default_on_accelerators_alone(platform, stop_ids, loops):
    params = jax.eval_shape(lambda: models.init_params(GPT2, jax.random.key(1)))
    generate = partial(rollout.generate, model=GPT2, stop_ids=stop_ids, pad_id=PAD, temperature=0.9)
    with compiling_for(platform):
        traced = jax.make_jaxpr(generate)(params, prompts_of(ROWS), np.zeros((ROWS, LENGTH), np.float32))
    assert sum(equation.primitive.name == "while" for equation in traced.eqns) == loops


def test_a_model_that_cannot_end_drops_no_rows():
    config = replace(TrainConfig(), batch_size=16, response_length=4, total_episodes=16, drop_ended_rows=True)
    params = jax.eval_shape(lambda: models.init_params(GPT2, jax.random.key(1)))
    prompts = PromptBatch(jnp.zeros((16, 8), jnp.int32), jnp.ones((16, 8), bool))
    given = (params, prompts, jnp.zeros((16, 4)))
    for settings, loops in (({}, 2), ({"stop_token": "none"}, 1), ({"stop_token": "none", "output_min_length": 2}, 2)):
        ppo = PPO(replace(config, **settings), GPT2, 3, PAD, DataParallel(devices=jax.devices()[:1]))
        lengths = jnp.full((16,), 4, jnp.int32) if "output_min_length" in settings else None
        assert ppo.sample_program.lower(*given, lengths).as_text().count("stablehlo.while") == loops


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "mesh", "row_shards"),
    [("shard_map", None, 4), ("pmap", None, 4), ("fsdp", "fsdp=4", 4), ("fsdp", "fsdp=2,tensor=2", 2)],
)
def test_every_device_drops_rows_of_its_own(mode, mesh, row_shards, monkeypatch):
    monkeypatch.setattr(models, "apply", APPLY)
    monkeypatch.setattr(
        partition, "MAX_GATHERED_SHARE", 0 if mesh == "fsdp=4" else 1
    )  # there devices drop rows together
    params = jax.device_get(models.init_params(NEOX, jax.random.key(1)))
    rows = prompts_of(64), np.random.default_rng(4).random((64, LENGTH), np.float32)
    together = program(params, *rows, model=NEOX, stop_ids=STOP, drop_ended=False)
    parallel = DataParallel(mode, mesh=mesh)
    generate = partial(rollout.generate, model=NEOX, stop_ids=STOP, pad_id=PAD, temperature=0.9, drop_ended=True)
    mapped = parallel.map(generate, row_axes=(None, 0, 0), out_axes=0)
    assert_alike(mapped(parallel.put(params), *parallel.put(rows, 0)), together)
    per_device = np.sum(together.completion_mask, axis=1).reshape(row_shards, -1)
    half = np.sort(per_device, axis=1)[:, -(per_device.shape[1] // 2) - 1]
    assert len({*half}) > 1 and np.all(half < LENGTH)  # rows were dropped on every device, not at the same time
