"""Where arrays go, and meshes that do not fit."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxppo import models
from jaxppo.config import RunConfig, TrainConfig
from jaxppo.config.sources import replace
from jaxppo.errors import ConfigError
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import partition
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.score_head import RowScorer
from jaxppo.rl.learner import PPO

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
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
    "text", ["", "rows=8", "fsdp", "fsdp=x", "fsdp=4,fsdp=2", "fsdp=0", "fsdp=-1,data=-1", "fsdp=2", "fsdp=3,data=-1"]
)
def test_meshes_that_cannot_be(text):
    with pytest.raises(ConfigError, match="mesh"):
        split(text)


@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_only_fsdp_splits_parameters(mode):
    for mesh in ("data=2,fsdp=2", "data=2,tensor=2", "fsdp=2,tensor=2"):
        with pytest.raises(ConfigError, match="mesh"):
            DataParallel(mode, jax.devices()[:4], mesh)
    assert DataParallel(mode, jax.devices()[:4], "data=4").row_shards == 4


@pytest.mark.parametrize(
    ("mesh", "change", "name"),
    [
        ("fsdp=4", {"hidden_size": 18, "num_attention_heads": 2}, "hidden_size"),
        ("tensor=4", {"num_attention_heads": 2}, "num_attention_heads"),
        ("tensor=4", {"intermediate_size": 30}, "intermediate_size"),
    ],
)
def test_models_that_do_not_fit_the_mesh(mesh, change, name):
    with pytest.raises(ConfigError, match=f"^mesh: .*{name}"):
        split(mesh).check_model(dataclasses.replace(NEOX, **change))
    split(mesh).check_model(NEOX)


@pytest.mark.parametrize("model", [NEOX, GPT2], ids=["gpt_neox", "gpt2"])
def test_every_matrix_of_a_family_is_in_the_table(model):
    params = jax.eval_shape(lambda: models.init_params(model, jax.random.key(0)))
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        axes = partition.axes_of(partition.path_of(keys))
        if leaf.ndim == 2:
            assert partition.FSDP in axes and len(axes) == 2, keys
            assert leaf.shape[axes.index(partition.FSDP)] == model.hidden_size  # by which shards are told
        else:
            assert partition.FSDP not in axes, keys


def test_parameters_and_what_goes_with_them_are_placed_by_their_names():
    ppo = PPO(replace(TrainConfig(), batch_size=8, total_episodes=80, dtype="bfloat16"), NEOX, 0, 1, split())
    policy = models.init_params(NEOX, jax.random.key(0))
    state = ppo.init_state(policy)
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
    reference = ppo.reference(state, policy)
    kind = lambda x: (x.shape, x.dtype, x.sharding.spec)  # noqa: E731
    assert jax.tree.map(kind, ppo.scored_policy(state, reference)) == jax.tree.map(kind, reference)  # by one program
    assert reference["lm_head"]["kernel"].dtype != head.dtype


def test_a_vocabulary_that_tensor_does_not_divide_stays_whole_and_to_host_gives_whole_arrays_back():
    head = DataParallel("fsdp", jax.devices()[:4], "tensor=4").placement(("lm_head", "kernel"), (16, 30))
    assert head.spec == P("fsdp", None)
    tree = {"lm_head": {"kernel": np.arange(480.0, dtype=np.float32).reshape(16, 30)}}
    np.testing.assert_array_equal(split().to_host(split().put(tree))["lm_head"]["kernel"], tree["lm_head"]["kernel"])


def test_each_process_has_rows_of_its_own(monkeypatch):
    parallel = DataParallel()
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(jax, "process_index", lambda: 2)
    assert parallel.local_rows(6) == slice(4, 6)


@pytest.mark.full
@pytest.mark.parametrize(("model", "dtype", "mesh"), [(NEOX, "float32", MESH), (GPT2, "bfloat16", "data=2,fsdp=2")])
def test_scores_of_a_split_reward_model(model, dtype, mesh):
    model, tolerance = models.with_dtype(model, dtype), 1e-5 if dtype == "float32" else 0.15
    params = models.init_params(model, jax.random.key(0), head="score")
    rows = [[3, 4, 5, 6], [7, 8], [9, 10, 11], [12], [13, 14], [15], [16, 2, 3], [4, 5, 6, 7]]
    one = DataParallel(devices=jax.devices()[:1])
    whole, in_shards = (RowScorer(model, p, batch_size=8)(p.put(params), rows) for p in (one, split(mesh)))
    np.testing.assert_allclose(in_shards, whole, atol=tolerance)
    assert np.ptp(whole) > 0.3


def test_devices_describe_themselves():
    parallel = DataParallel(devices=jax.devices()[:1])
    assert parallel.of_process() is parallel
    assert parallel.local_rows(8) == slice(0, 8)
    assert parallel.describe() == "1 cpu device(s) by shard_map"
    assert split().describe() == "4 cpu device(s) by fsdp (fsdp=2,tensor=2)"
    assert RunConfig().distributed is None
    assert (split().row_shards, split("data=2,fsdp=2").row_shards) == (2, 4)  # tensor splits no rows
