"""Where arrays go, and meshes that do not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxppo import models
from jaxppo.config import RunConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.nn import FAMILIES
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import partition
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.score_head import RowScorer
from jaxppo.rl.ppo import PPO
from jaxppo.types import PromptBatch

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
NEOX = GPTNeoXConfig(**SIZES, intermediate_size=32, initializer_range=0.3)
GPT2 = GPT2Config(**SIZES, intermediate_size=32, max_position_embeddings=32, initializer_range=0.3)
MESH = "fsdp=2,tensor=2"


def split(mesh: str = MESH) -> DataParallel:
    return DataParallel("fsdp", jax.devices()[:4], mesh)


@pytest.mark.parametrize(
    ("text", "devices", "sizes"),
    [
        ("fsdp=8", 8, (1, 8, 1)),
        ("tensor=2, fsdp=4", 8, (1, 4, 2)),
        ("data=2,fsdp=2,tensor=2", 8, (2, 2, 2)),
        ("data=-1,tensor=2", 8, (4, 1, 2)),
        ("data=-1", 1, (1, 1, 1)),
    ],
)
def test_parse_mesh(text, devices, sizes):
    assert tuple(partition.parse_mesh(text, devices).values()) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "axis=size"),
        ("rows=8", "axis=size"),
        ("fsdp", "axis=size"),
        ("fsdp=x", "axis=size"),
        ("fsdp=4,fsdp=2", "each at most once"),
        ("fsdp=0", "at least 1"),
        ("fsdp=-2", "at least 1"),
        ("fsdp=-1,data=-1", "one of them"),
        ("fsdp=2", "multiply to the number of devices, 4"),
        ("fsdp=3,data=-1", "multiply to the number of devices, 4"),
    ],
)
def test_meshes_that_cannot_be(text, message):
    with pytest.raises(ConfigError, match=f"^mesh: expected .*{message}.*, got {text!r}"):
        split(text)


@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_only_fsdp_splits_parameters(mode):
    with pytest.raises(ConfigError, match=f"mesh: expected data alone with parallel {mode}, got 'data=2,fsdp=2'"):
        DataParallel(mode, jax.devices()[:4], "data=2,fsdp=2")
    for mesh in ("data=2,tensor=2", "fsdp=2,tensor=2"):
        with pytest.raises(ConfigError, match="expected data alone"):
            DataParallel(mode, jax.devices()[:4], mesh)
    assert DataParallel(mode, jax.devices()[:4], "data=4").row_shards == 4


@pytest.mark.parametrize(
    ("mesh", "change", "message"),
    [
        ("fsdp=4", {"hidden_size": 18, "num_attention_heads": 2}, "fsdp to divide the model's hidden_size=18"),
        ("tensor=4", {"num_attention_heads": 2}, "tensor to divide the model's num_attention_heads=2"),
        ("tensor=4", {"intermediate_size": 30}, "tensor to divide the model's intermediate_size=30"),
    ],
)
def test_models_that_do_not_fit_the_mesh(mesh, change, message):
    model = GPTNeoXConfig(**SIZES | {"intermediate_size": 32} | change)
    with pytest.raises(ConfigError, match=f"mesh: expected {message}"):
        split(mesh).check_model(model)
    split(mesh).check_model(NEOX)


def test_batches_that_do_not_fit_the_mesh():
    config = replace(TrainConfig(), batch_size=6, num_mini_batches=1)
    with pytest.raises(ConfigError, match="batch_size / num_generations"):
        config.check_devices(split("fsdp=4").row_shards)
    config.check_devices(split(MESH).row_shards)  # tensor splits no rows


@pytest.mark.parametrize(("model", "family"), [(NEOX, "gpt_neox"), (GPT2, "gpt2")])
def test_every_matrix_of_a_family_is_in_the_table(model, family):
    assert family in FAMILIES
    params = models.init_params(model, jax.random.key(0))
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        axes = partition.axes_of(partition.path_of(keys))
        if leaf.ndim == 2:
            assert partition.FSDP in axes and len(axes) == 2, keys
            assert leaf.shape[axes.index(partition.FSDP)] == model.hidden_size  # by which shards are told
        else:
            assert partition.FSDP not in axes, keys


def test_parameters_and_what_goes_with_them_are_placed_by_their_names():
    ppo = PPO(replace(TrainConfig(), batch_size=8, total_episodes=80), NEOX, 0, 1, split())
    state = ppo.init_state(models.init_params(NEOX, jax.random.key(0)))
    attention = state.params["policy"]["trunk"]["layers"]["0"]["attention"]
    assert attention["query_key_value"]["kernel"].sharding.spec == P("fsdp", "tensor")
    assert attention["query_key_value"]["bias"].sharding.spec == P("tensor")
    assert attention["dense"]["kernel"].sharding.spec == P("tensor", "fsdp")
    moments = [
        leaf
        for keys, leaf in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
        if partition.path_of(keys).endswith("policy/trunk/layers/0/attention/dense/kernel")
    ]
    assert [m.sharding.spec for m in moments] == [P("tensor", "fsdp")] * 2
    assert state.params["policy"]["trunk"]["final_layer_norm"]["scale"].sharding.spec == P()
    head = state.params["policy"]["lm_head"]["kernel"]
    assert head.addressable_shards[0].data.shape == (8, 15)


def test_a_vocabulary_that_tensor_does_not_divide_stays_whole():
    head = DataParallel("fsdp", jax.devices()[:4], "tensor=4").placement(("lm_head", "kernel"), (16, 30))
    assert head.spec == P("fsdp", None)


def test_to_host_gives_whole_arrays_back():
    tree = {"lm_head": {"kernel": np.arange(480.0, dtype=np.float32).reshape(16, 30)}}
    np.testing.assert_array_equal(split().to_host(split().put(tree))["lm_head"]["kernel"], tree["lm_head"]["kernel"])


@pytest.mark.full
@pytest.mark.parametrize("model", [NEOX, GPT2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_and_samples_of_a_split_model(model, dtype):
    """Reward models, of both families, and the sampler of each."""
    model, tolerance = models.computing_in(model, dtype), 1e-5 if dtype == "float32" else 0.15
    params = models.init_params(model, jax.random.key(0), head="score")
    rows = [[3, 4, 5, 6], [7, 8], [9, 10, 11], [12], [13, 14], [15], [16, 2, 3], [4, 5, 6, 7]]
    one = DataParallel(devices=jax.devices()[:1])
    scored = [RowScorer(model, p, batch_size=8)(p.put(params), rows) for p in (one, split(), split("data=2,fsdp=2"))]
    np.testing.assert_allclose(scored[1], scored[0], atol=tolerance)
    np.testing.assert_allclose(scored[2], scored[0], atol=tolerance)
    assert np.ptp(scored[0]) > 0.3


@pytest.mark.full
def test_samples_of_a_split_model_with_adapters():
    config = replace(TrainConfig(), batch_size=8, response_length=6, total_episodes=80, use_peft=True, lora_r=2)
    prompts = PromptBatch(jnp.full((8, 4), 5), jnp.ones((8, 4), bool))
    policy = models.init_params(GPT2, jax.random.key(0))
    completions = []
    for parallel in (DataParallel(devices=jax.devices()[:1]), split()):
        ppo = PPO(config, GPT2, 0, 1, parallel)
        state = ppo.init_state(jax.tree.map(jnp.array, policy))
        waves = jax.tree.map(lambda x: 0.3 * np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape), state.params)
        state = state._replace(params=parallel.put(waves))  # fresh adapters change nothing
        rollout = ppo.generate(state, prompts, 0)
        completions.append(np.asarray(rollout.completion_ids))
    np.testing.assert_array_equal(*completions)
    assert len(np.unique(completions[0])) > 5


@pytest.mark.full
@pytest.mark.parametrize("model", [NEOX, GPT2])
def test_an_update_of_a_split_model_with_a_padded_vocabulary(model):
    config = replace(TrainConfig(), batch_size=8, response_length=6, total_episodes=80, learning_rate=1e-2)
    model = dataclasses.replace(model, num_tokens=27)
    prompts = PromptBatch(jnp.full((8, 4), 5), jnp.ones((8, 4), bool))
    policy = jax.device_get(models.init_params(model, jax.random.key(0)))
    embedding = policy["trunk"]["embed_in"]["embedding"]
    embedding = np.concatenate([embedding[:27], 40 * embedding[:3]])  # the largest logits where it is the head
    policy["trunk"]["embed_in"] = {"embedding": embedding}
    if "lm_head" in policy:
        kernel = policy["lm_head"]["kernel"]
        policy["lm_head"] = {"kernel": np.concatenate([kernel[:, :27], 40 * kernel[:, :3]], axis=1)}
    completions, params = [], []
    for parallel in (DataParallel(devices=jax.devices()[:1]), split(), split("fsdp=4")):
        ppo = PPO(config, model, 0, 1, parallel)
        state = ppo.init_state(jax.tree.map(jnp.array, policy))
        rollout = ppo.generate(state, prompts, 0)
        completions.append(np.asarray(rollout.completion_ids))
        sequences = ppo.pack(prompts, rollout)
        scored = ppo.score(state, ppo.reference(state, policy), sequences, rollout)
        state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, np.linspace(0, 1, 8))
        assert abs(float(stats["objective/kl"])) < 1e-4
        state, stats = ppo.update(state, trajectories, 0)
        assert abs(float(stats["val/ratio_first"]) - 1.0) < 1e-5
        params.append(parallel.to_host(state.params["policy"]))
    assert max(ids.max() for ids in completions) < 27 and len(np.unique(completions[0])) > 5
    for other in (1, 2):
        np.testing.assert_array_equal(completions[other], completions[0])
        # Adam divides by the size of a gradient: what is next to none moves by its rounding.
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-3), params[other], params[0])


def test_one_device_knows_its_place():
    parallel = DataParallel(devices=jax.devices()[:1])
    assert parallel.of_process() is parallel
    assert parallel.local_rows(8) == slice(0, 8)
    assert parallel.describe() == "1 cpu device(s) by shard_map"
    assert split().describe() == "4 cpu device(s) by fsdp (fsdp=2,tensor=2)"
    assert RunConfig().is_distributed is False
