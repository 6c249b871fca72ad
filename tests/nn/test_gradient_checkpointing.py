"""`gradient_checkpointing`: the same gradients from less memory, in every command that has it."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import models, reward_model
from jaxppo.config import RewardModelConfig, SFTConfig
from jaxppo.config.sources import replace
from jaxppo.data.preferences import PairBatch
from jaxppo.nn import Computation, lora
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import LlamaConfig
from jaxppo.nn.lora import LoraConfig
from jaxppo.nn.rotary import Rope
from jaxppo.parallel import platform, stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import optimizer, update
from jaxppo.rl.learner import PPO
from jaxppo.rl.supervised import SFT
from jaxppo.types import Sequences, Trajectories
from tests.device_modes import EOS, MODEL, PAD, PPO_CONFIG, prompts_of, recorded
from tests.torch_models import random_params

SIZES = {"vocab_size": 24, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"initializer_range": 0.3, "eos_token_id": EOS, "pad_token_id": PAD}
NEOX = GPTNeoXConfig(**SIZES, num_hidden_layers=3)
TWO_LAYERS = dataclasses.replace(NEOX, num_hidden_layers=2)
GPT2 = GPT2Config(**SIZES, num_hidden_layers=3, max_position_embeddings=32)
SMOLLM3 = LlamaConfig(
    model_type="smollm3",
    **SIZES,
    num_hidden_layers=4,
    num_key_value_heads=1,
    head_dim=8,
    sliding_window=5,
    window_layers=(0, 1, 2),
    unrotated_layers=(2,),
)
GEMMA3 = LlamaConfig(
    model_type="gemma3_text",
    **SIZES,
    num_hidden_layers=4,
    num_key_value_heads=1,
    head_dim=8,
    sliding_window=5,
    window_layers=(0, 1, 3),
    window_rope=Rope(rope_theta=99.0),
    tie_word_embeddings=True,
)
"""Layers of three kinds, two of one kind beside each other."""
IDS = np.random.default_rng(0).integers(2, 24, (4, 12))
READ = np.broadcast_to(np.arange(6, 12), (4, 6))
ONE_DEVICE = DataParallel(devices=jax.devices()[:1])
ATTENTION_OF_SOME = LoraConfig(r=2, target_modules=r".*\.[02]\.attention\.dense")


def squares(params, config, read=READ):
    """A number that every hidden state has a part in."""
    weights = jnp.cos(jnp.arange(16.0))
    hidden = models.apply(config, params, IDS, read=read, logits=False).hidden
    return jnp.sum((hidden.astype(jnp.float32) * weights) ** 2)


def with_and_without(loss, config, params):
    """(value, gradients), first without, then with."""
    both = [models.with_checkpointing(config, on) for on in (False, True)]
    return [jax.value_and_grad(partial(loss, config=config))(params) for config in both]


def assert_equal(a, b, tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


@pytest.mark.parametrize(
    ("config", "tolerance", "read"),
    [
        pytest.param(NEOX, 1e-5, READ, id="neox"),
        pytest.param(GPT2, 1e-5, None, id="gpt2, all read"),
        pytest.param(SMOLLM3, 1e-5, READ, id="smollm3"),
        pytest.param(GEMMA3, 1e-5, READ, id="gemma3", marks=pytest.mark.full),
        pytest.param(GPT2Config(**SIZES, num_hidden_layers=1, max_position_embeddings=32), 1e-5, READ, id="one layer"),
        pytest.param(models.with_dtype(NEOX, "bfloat16"), 0.02, READ, id="bfloat16", marks=pytest.mark.full),
        # Every layer of another kind: no two of them are one loop.
        pytest.param(
            GPT2Config(**SIZES, num_hidden_layers=3, max_position_embeddings=32, scale_attn_by_inverse_layer_idx=True),
            1e-5,
            READ,
            id="unlike layers",
            marks=pytest.mark.full,
        ),
    ],
)
def test_gradients_are_the_same(config, tolerance, read):
    params = random_params(config)
    (value, grads), (again, grads_again) = with_and_without(partial(squares, read=read), config, params)
    assert max(jax.tree.leaves(jax.tree.map(lambda x: float(jnp.abs(x).max()), grads["trunk"]["layers"]))) > 0.1
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads))
    np.testing.assert_allclose(value, again, rtol=tolerance)
    scaled = [jax.tree.map(lambda x: x / largest, tree) for tree in (grads, grads_again)]
    assert_equal(*scaled, tolerance)


def test_deep_models_are_one_loop_on_a_cpu_unless_they_are_wide():
    found = {}
    for layers, width in ((15, 64), (16, 64), (16, 512)):
        wide = GPTNeoXConfig(**SIZES | {"hidden_size": width}, num_hidden_layers=layers)
        found[layers, width] = wide.scans_layers
    assert found == {(15, 64): False, (16, 64): True, (16, 512): False}
    assert dataclasses.replace(wide, computation=Computation(accelerated=True)).scans_layers


@pytest.mark.parametrize(("layers", "on", "expected"), [(16, False, False), (17, False, True), (16, True, True)])
def test_layers_are_one_loop_on_a_gpu_where_they_are_many_or_save_their_inputs_alone(layers, on, expected):
    with platform.compiling_for(platform.Platform("gpu", None)):
        model = models.with_dtype(GPTNeoXConfig(**SIZES, num_hidden_layers=layers), "bfloat16")
    assert models.with_checkpointing(model, on).scans_layers == expected


def test_gradients_of_adapters_that_some_layers_have():
    base = random_params(NEOX)
    adapter = lora.init_adapter(NEOX, ATTENTION_OF_SOME, jax.random.key(1))
    waves = lambda x: 0.3 * np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)  # noqa: E731
    adapter = jax.tree.map(lambda x: x + waves(x), adapter)  # B starts at 0
    assert list(adapter["trunk"]["layers"]) == ["0", "2"]
    loss = lambda adapter, config: squares(lora.attach(base, adapter, 2.0), config)  # noqa: E731
    (_, grads), (_, again) = with_and_without(loss, NEOX, adapter)
    assert min(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) > 1e-3
    assert_equal(grads, again, 1e-4)


def temporary_bytes(num_layers, on):
    """What XLA reserves for the gradient of a model of so many layers."""
    config = GPTNeoXConfig(**SIZES, num_hidden_layers=num_layers)
    config = models.with_checkpointing(models.with_dtype(config, "bfloat16"), on)
    params = jax.eval_shape(lambda: models.init_params(config, jax.random.key(0)))
    ids = jax.ShapeDtypeStruct((8, 256), np.int32)

    def loss(params, ids):
        return jnp.sum(models.apply(config, params, ids, logits=False).hidden.astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(loss)).lower(params, ids).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.full
def test_a_layer_more_takes_little_more_memory():
    more = {on: temporary_bytes(4, on) - temporary_bytes(3, on) for on in (False, True)}
    inputs = 8 * 256 * 16 * 2
    assert more[False] > 50 * inputs  # attention weights above all
    assert more[True] < 3 * inputs


def updated(config, parallel):
    """Parameters and statistics of an update from recorded completions."""
    prompts = prompts_of(config)
    ppo = PPO(config, TWO_LAYERS, EOS, PAD, parallel)
    policy, other = (models.init_params(TWO_LAYERS, jax.random.key(seed)) for seed in (0, 1))
    near = jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, policy, other)
    state = ppo.init_state(policy)
    rollout = ppo.rollout_of(recorded())
    sequences = ppo.pack(prompts, rollout)
    scored = ppo.score(state, parallel.put(near), sequences, rollout)
    scores = np.linspace(-1, 1, config.batch_size)
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, scores)
    state, update_stats = ppo.update(state, trajectories, 0)
    return jax.device_get((state.params, stats | update_stats))


@pytest.mark.full
@pytest.mark.parametrize(
    "mesh",
    [
        "fsdp=2",
        pytest.param("fsdp=2,tensor=2", marks=pytest.mark.slow),  # four devices on two cores take a minute
    ],
)
def test_an_update_over_split_weights_is_the_same(mesh):
    config = replace(PPO_CONFIG, algorithm="rloo", num_generations=2)  # half as much to compile as with a value model
    base = updated(config, ONE_DEVICE)
    split = DataParallel("fsdp", jax.devices()[: 2 if mesh == "fsdp=2" else 4], mesh)
    again = updated(replace(config, gradient_checkpointing=True), split)
    before = models.init_params(TWO_LAYERS, jax.random.key(0))["lm_head"]["kernel"]
    assert np.abs(base[0]["policy"]["lm_head"]["kernel"] - before).max() > 1e-3
    assert_equal(base, stacks.unstack(again), 1e-4)


def shape(*sizes, dtype=np.int32):
    return jax.ShapeDtypeStruct((1, 1, *sizes), dtype)


def trace_train(on):
    """Trace the update of `train`."""
    config = replace(PPO_CONFIG, gradient_checkpointing=on)
    ppo = PPO(config, MODEL, EOS, PAD, ONE_DEVICE)
    rows, response = config.batch_size, config.sampling.response_length
    ids, mask, numbers = (jax.ShapeDtypeStruct((rows, response), kind) for kind in (np.int32, bool, np.float32))
    state = jax.eval_shape(ppo.init_state, jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0))))
    lengths = jax.ShapeDtypeStruct((rows,), np.int32)
    sequences = Sequences(jax.ShapeDtypeStruct((rows, 12), np.int32), lengths, ids, mask)
    batch = jax.eval_shape(ppo.mini_batches_program, Trajectories(sequences, *[numbers] * 5, mask), jax.random.key(0))
    jax.eval_shape(ppo.update_program, state, None, batch)


def trace_sft(on):
    """Trace a step of `sft`."""
    config = replace(SFTConfig(), batch_size=4, total_episodes=40, gradient_checkpointing=on)
    rows = Sequences(shape(4, 12), shape(4), shape(4, 6), shape(4, 6, dtype=bool)), shape(4, 6, dtype=np.float32)
    optimiser = optimizer.make_optimizer(config.optimizer)
    init = lambda: update.init_state({"policy": models.init_params(MODEL, jax.random.key(0))}, optimiser)  # noqa: E731
    state = jax.eval_shape(init)
    jax.eval_shape(SFT(config, MODEL, ONE_DEVICE).program, state, rows)


def trace_reward_model(on):
    """Trace a step of `reward_model`."""
    config = replace(RewardModelConfig(), gradient_checkpointing=on)
    training = reward_model.RewardModelLearner(config, MODEL, ONE_DEVICE)
    pairs = PairBatch(shape(4, 12), shape(4), shape(4, 12), shape(4), shape(4, dtype=np.float32))
    state = jax.eval_shape(lambda: training.init_state(models.init_params(MODEL, jax.random.key(0), "score")))
    jax.eval_shape(training.make_step(10), state, (pairs, shape(4, dtype=np.float32)))


@pytest.mark.parametrize("trace", [trace_train, trace_sft, trace_reward_model])
def test_every_command_that_learns_has_it(monkeypatch, trace):
    seen, apply = [], models.apply

    def watched(config, *args, **kwargs):
        seen.append(config.computation.gradient_checkpointing)
        return apply(config, *args, **kwargs)

    monkeypatch.setattr(models, "apply", watched)
    for on in (False, True):
        seen.clear()
        trace(on)
        assert set(seen) == {on}
