"""Our own counts against numbers worked out by hand, the compiler's where there are no loops, and `flops.py`."""

import jax
import jax.numpy as jnp
import pytest

from jaxppo import models
from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import counts, flops
from jaxppo.rl.describe import plan_of
from jaxppo.rl.learner import PPO
from jaxppo.rl.start import Start

SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
PRODUCT = 2 * 64**3
ARRAY = 4 * 64 * 64  # bytes


def count(function, *shapes, **about):
    return counts.of_program(jax.jit(function).trace(*shapes).jaxpr, **about)


def test_a_product_reads_its_factors_and_elementwise_operations_are_part_of_it():
    assert count(lambda x, y: x @ y, SQUARE, SQUARE)[:2] == (PRODUCT, 3 * ARRAY)
    assert count(lambda x: jnp.tanh(jnp.exp(x @ x)) @ x, SQUARE)[:2] == (2 * PRODUCT, 6 * ARRAY)


def test_loops_are_multiplied_out_the_dearest_branch_counts_and_what_nobody_needs_does_not():
    assert count(lambda x: (x @ x, x + 1.0)[1], SQUARE).flops == 0

    def scanned(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, None, length=7)[0]

    def until(x):
        return jax.lax.while_loop(lambda c: jnp.any(c > 0), lambda c: c @ x, x)

    def either(x):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x)

    assert count(either, SQUARE).flops == PRODUCT
    assert count(scanned, SQUARE).flops == 7 * PRODUCT
    assert count(until, SQUARE, trips=5).flops == 5 * PRODUCT
    assert count(jax.vmap(scanned), jax.ShapeDtypeStruct((3, 64, 64), jnp.float32)).flops == 21 * PRODUCT


def test_a_cache_is_read_where_it_is_read_and_not_carried():
    """As in decoding: a token is written into a cache in place, then all of it is read."""
    cache, row = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16), jax.ShapeDtypeStruct((1, 128), jnp.bfloat16)

    def step(state):
        cache, row, t = state
        cache = jax.lax.dynamic_update_slice(cache, row, (t, 0))
        return cache, (row @ cache.T) @ cache, t + 1

    def decode(cache, row):
        return jax.lax.while_loop(lambda state: state[2] < 64, step, (cache, row, jnp.int32(0)))[1]

    of_cache, of_row, of_scores = 2 * 64 * 128, 2 * 128, 2 * 64
    a_round = 2 * of_cache + 4 * of_row + 2 * of_scores
    assert count(decode, cache, row, trips=10).bytes == pytest.approx(10 * a_round, rel=0.02)


def test_recomputation_counts_and_own_gradients_do():
    def loss(x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ x) @ x))(x))

    @jax.custom_vjp
    def own(x):
        return x @ x

    own.defvjp(lambda x: (x @ x, x), lambda x, grad: (grad @ x,))
    assert count(jax.grad(loss), SQUARE).flops == pytest.approx((2 + 1 + 4) * PRODUCT, rel=0.15)
    assert count(jax.grad(lambda x: jnp.sum(own(x))), SQUARE).flops == PRODUCT


def test_a_device_does_its_share_and_sends_what_it_has_with_loops_multiplied_out():
    parallel = DataParallel("fsdp", jax.devices(), "data=2,fsdp=2")

    def program(x):
        gathered = jax.lax.all_gather(x, "fsdp", axis=1, tiled=True)
        scattered = jax.lax.psum_scatter(x, "data", tiled=True)
        exchanged = jax.lax.all_to_all(x, "fsdp", 1, 0, tiled=True)
        alone = jax.lax.psum(x, "tensor")  # of one device: nothing is sent
        looped = jax.lax.scan(lambda c, _: (jax.lax.psum(jnp.sin(c), ("data", "fsdp")), None), x, None, length=7)[0]
        return gathered @ gathered.T, scattered, exchanged, alone, looped

    found = counts.of_program(parallel.map(program, (0,), (0,) * 5).trace(SQUARE).jaxpr)
    share = ARRAY / 4  # 16 rows of 64
    assert found.flops == 2 * 16 * 16 * 128
    assert found.sent == {
        ("all-gather", ("fsdp",)): 2 * share,
        ("reduce-scatter", ("data",)): share,
        ("all-to-all", ("fsdp",)): share,
        ("all-reduce", ("data", "fsdp")): 7 * share,
    }


MODEL = GPTNeoXConfig(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
CONFIG = replace(TrainConfig(), batch_size=8, response_length=16, num_mini_batches=1, total_episodes=80)


def test_an_update_is_what_the_arithmetic_of_the_shapes_says():
    """The arithmetic takes every token to see its row; so does attention on a CPU."""
    ppo = PPO(CONFIG, MODEL, 0, 1, DataParallel())
    devices = ppo.parallel.num_devices
    policy = jax.eval_shape(lambda: models.init_params(MODEL, jax.random.key(0)))
    plan = plan_of(ppo, Start(policy, None, None), 32)
    found = {
        name: devices * sum(counts.of_program(p.function.trace(*p.arguments).jaxpr, plan.trips).flops for p in programs)
        for name, programs in plan.stages.items()
    }
    params = jax.eval_shape(lambda *start: ppo.models_of(ppo.init_state(*start)), policy)
    shapes = flops.Shapes(8, 32, 8, 16, 16, 48)
    arithmetic = flops.of_models(ppo.model, ppo.value_model, params)
    assert found["generate"] == pytest.approx(flops.sampling(arithmetic.policy, shapes), rel=0.05)
    assert found["score"] == pytest.approx(flops.scoring(CONFIG, arithmetic, shapes), rel=0.05)
    assert found["update"] == pytest.approx(flops.learning(CONFIG, arithmetic, shapes), rel=0.1)
