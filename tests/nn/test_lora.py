# ruff: noqa: F811 (`bases` is a fixture)
"""Adapters against PEFT itself: logits, gradients and folders, both ways; and against the base they leave alone."""

import dataclasses
import json
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxppo import hf, models
from jaxppo.hf import files as model_files
from jaxppo.nn import lora
from jaxppo.nn.llama_kinds import KINDS
from jaxppo.nn.lora import LoraConfig
from tests import peft_models, quick_first
from tests.peft_models import LORA_CONFIGS as CONFIGS
from tests.peft_models import bases, peft_adapted, random_adapter, random_tree, torch_base  # noqa: F401
from tests.torch_models import (
    LENGTHS,
    RAW,
    assert_equal_trees,
    edit_json,
    edit_tensors,
    next_token_loss,
    ragged_batch,
    random_params,
    read,
    refused,
    torch,
    torch_loss,
    torch_model,
)

peft = pytest.importorskip("peft")

NEOX, GPT2 = CONFIGS["gpt_neox"], CONFIGS["gpt2"]
OF_LLAMA = (*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down")))
LAYERS = {name: OF_LLAMA for name in KINDS} | {
    "gpt_neox": ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
}
PREFIX = {name: "model.layers.{}." for name in KINDS} | {"gpt_neox": "gpt_neox.layers.{}.", "gpt2": "transformer.h.{}."}
ALL = LoraConfig(r=4, lora_alpha=8)
# (family, shape, layers of both blocks that it names)
ADAPTERS = [
    ("gpt_neox", ALL, LAYERS["gpt_neox"]),
    ("gpt2", LoraConfig(r=4, lora_alpha=4, use_rslora=True), LAYERS["gpt2"]),
    ("llama", LoraConfig(r=2, target_modules=("q_proj", "v_proj")), OF_LLAMA[:3:2]),
    ("gpt2", LoraConfig(r=1, lora_alpha=2.5, target_modules=r".*\.c_proj"), LAYERS["gpt2"][1::2]),
    ("gpt_neox", LoraConfig(r=3, lora_alpha=7, target_modules=("dense", "query_key_value")), LAYERS["gpt_neox"][:2]),
    *((name, ALL, OF_LLAMA) for name in KINDS),
]
FAMILIES = pytest.mark.parametrize("family", quick_first(3, CONFIGS))


def batch():
    """(ids, mask), padded on the right with the token by which transformers finds the last one of a row."""
    ids, mask = ragged_batch("right")
    return np.where(mask, ids, NEOX.pad_token_id), mask


def our_output(config, params):
    """Logits at real tokens, or scores at the last of each row."""
    ids, mask = batch()
    output = models.apply(config, params, jnp.asarray(ids), logits="score" not in params)
    if "score" in params:
        return models.scores(params, output.hidden)[np.arange(len(ids)), LENGTHS - 1]
    return np.asarray(output.logits)[mask]


def torch_output(model):
    """The same of a model of transformers or PEFT."""
    ids, mask = batch()
    with torch.no_grad():
        logits = model.eval()(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int))).logits.numpy()
    return logits[:, 0] if logits.ndim == 2 else logits[mask]


def from_peft(folder, base, head="lm"):
    """PEFT's model of an adapter's folder, a warning of which is an error: of missing keys, or `fan_in_fan_out`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return peft.PeftModel.from_pretrained(torch_base(base, head), folder)


close = partial(np.testing.assert_allclose, atol=1e-4, rtol=0)


@pytest.fixture
def saved(tmp_path, bases):
    """(folder, config, base) of an adapter on GPT-NeoX, written by us."""
    _, base = bases["gpt_neox", "lm"]
    shape = LoraConfig(r=4)
    hf.peft.save_adapter(tmp_path / "adapter", NEOX, shape, random_adapter(NEOX, shape), base, "a-base")
    return tmp_path / "adapter", NEOX, base


def test_scale_is_alpha_over_rank_or_its_root_and_a_bad_field_is_named():
    assert LoraConfig(r=4, lora_alpha=8).scale == 2.0
    assert LoraConfig(r=4, lora_alpha=8, use_rslora=True).scale == 4.0
    for field, value in (("r", 0), ("r", 2.0), ("lora_alpha", 0), ("lora_alpha", np.nan), ("target_modules", "(dense")):
        refused(f"^{field}: ", LoraConfig, **{field: value})


@pytest.mark.parametrize("targets", [("dense",), ("attention.dense",), ("h_to_4h",), "dense", r".*dense", r".*1\..*"])
def test_targets_are_those_of_peft(targets):
    tuners_utils = pytest.importorskip("peft.tuners.tuners_utils")
    theirs = peft.LoraConfig(target_modules=targets if isinstance(targets, str) else list(targets))
    names = list(lora.linear_layers(NEOX))
    expected = [name for name in names if tuners_utils.check_target_module_exists(theirs, name)]
    assert [name for name in names if LoraConfig(target_modules=targets).targets(name)] == expected


@FAMILIES
def test_linear_layers_are_those_of_transformers(family):
    config = CONFIGS[family]
    expected = {}
    for name, module in torch_model(hf.config_to_hf(config, "lm")).named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name and "embed_out" not in name:
            expected[name] = (module.in_features, module.out_features)
        if type(module).__name__ == "Conv1D":
            expected[name] = (module.nx, module.nf)
    assert {name: shape for name, (_, shape) in lora.linear_layers(config).items()} == expected
    params = random_params(config)
    for path, shape in lora.linear_layers(config).values():
        layer = params
        for part in path:
            layer = layer[part]
        assert layer["kernel"].shape == shape


def test_init_adapter_draws_as_peft_does(bases):
    torch.manual_seed(0)
    folder, _ = bases["gpt_neox", "lm"]
    theirs = peft.get_peft_model(torch_base(folder), peft.LoraConfig(r=64, target_modules=["query_key_value"]))
    drawn = {name: p.detach().numpy() for name, p in theirs.named_parameters() if "lora_" in name}
    shape = LoraConfig(r=64, target_modules=("query_key_value",))
    adapter = lora.init_adapter(NEOX, shape, jax.random.key(0))
    ours = {i: layer["attention"]["query_key_value"] for i, layer in adapter["trunk"]["layers"].items()}
    a = np.stack([layer["lora_a"] for layer in ours.values()])
    expected = np.stack([value for name, value in drawn.items() if "lora_A" in name])
    bound = 32**-0.5  # kaiming_uniform with a = sqrt(5): sqrt(6 / (1 + 5) / inputs)
    for sample in (a, expected):
        assert 0.99 * bound < np.abs(sample).max() <= bound
        np.testing.assert_allclose(np.quantile(sample, [0.1, 0.5, 0.9]) / bound, [-0.8, 0.0, 0.8], atol=0.06)
    assert not any(np.any(value) for name, value in drawn.items() if "lora_B" in name)
    assert not any(np.any(layer["lora_b"]) for layer in ours.values())
    assert not np.array_equal(a[0], a[1])
    again, other = (lora.init_adapter(NEOX, shape, jax.random.key(seed)) for seed in (0, 1))
    assert_equal_trees(adapter, again)
    of_none = LoraConfig(target_modules=("q_proj",))  # a layer of other families
    refused("^lora_target_modules: .*query_key_value", lora.init_adapter, NEOX, of_none, jax.random.key(0))
    misspelt = LoraConfig(target_modules=("query_key_value", "dens"))
    refused("^lora_target_modules: .*'dens'", lora.check_targets, NEOX, misspelt)
    assert not np.array_equal(a[0], other["trunk"]["layers"]["0"]["attention"]["query_key_value"]["lora_a"])


def test_attach_shares_the_arrays_of_the_base(bases):
    """One base under many adapters, which it does not notice."""
    _, base = bases["gpt_neox", "lm"]
    before = jax.tree.map(np.array, base)
    expected = our_output(NEOX, base)
    value_shape = LoraConfig(r=2, target_modules=("dense",))
    policy = lora.attach(base, random_adapter(NEOX, ALL), ALL.scale)
    value = lora.attach(base, random_adapter(NEOX, value_shape, score=True), value_shape.scale)
    outputs = [our_output(NEOX, {name: tree[name] for name in ("trunk", "lm_head")}) for tree in (policy, value)]
    for one, other in ((expected, outputs[0]), (expected, outputs[1]), tuple(outputs)):
        assert np.abs(one - other).max() > 0.1
    for tree, keys in ((policy, {"lora_a", "lora_b"}), (value, {"lora_a", "lora_b", "kernel"})):  # the score head's
        leaves = {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(base):
            assert leaves.pop(path) is leaf
        assert {path[-1].key for path in leaves} == keys
    np.testing.assert_array_equal(our_output(NEOX, base), expected)
    assert_equal_trees(base, before)


def test_merge_adds_the_scaled_product():
    base = {
        "trunk": {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}},
        "score": {"kernel": jnp.ones((2, 1))},
    }
    factors = {"lora_a": jnp.array([[1.0], [2.0]]), "lora_b": jnp.array([[3.0, 4.0]])}
    adapter = {"trunk": {"dense": factors}, "score": {"kernel": jnp.full((2, 1), 7.0)}}
    merged = lora.merge(base, adapter, 0.5)
    np.testing.assert_array_equal(merged["trunk"]["dense"]["kernel"], [[2.5, 3.0], [4.0, 5.0]])
    np.testing.assert_array_equal(merged["score"]["kernel"], [[7.0], [7.0]])
    assert merged["trunk"]["dense"]["bias"] is base["trunk"]["dense"]["bias"]
    attached = lora.attach(base, adapter, 0.5)
    np.testing.assert_array_equal(attached["trunk"]["dense"]["lora_b"], [[1.5, 2.0]])
    assert attached["trunk"]["dense"]["lora_a"] is factors["lora_a"]
    assert attached["score"]["kernel"] is adapter["score"]["kernel"]


@pytest.mark.parametrize(("dtype", "precision"), [(None, "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_a_sum_that_is_rounded_needs_no_product_in_full_precision(dtype, precision):
    """Which a TPU's compiler takes seconds for, each."""
    params = {"kernel": jnp.ones((4, 6)), "lora_a": jnp.ones((4, 2)), "lora_b": jnp.ones((2, 6))}
    with jax.default_matmul_precision("highest"):  # as in every command
        found = jax.make_jaxpr(partial(lora.merge_attached, dtype=dtype))(params)
    (product,) = (step for step in found.eqns if step.primitive.name == "dot_general")
    assert {each.name for each in product.params["precision"]} == {precision}
    assert [kernel.dtype for kernel in found.out_avals] == [dtype or "float32"]


def test_an_adapter_leaves_the_dtype_of_a_half_precision_base(bases):
    """A float32 adapter would otherwise turn the residual stream, and the cache, into float32."""
    shape = LoraConfig(r=4)
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), bases["gpt2", "lm"][1])
    adapter = random_adapter(GPT2, shape)
    attached, merged = (make(half, adapter, shape.scale) for make in (lora.attach, lora.merge))
    ids = jnp.asarray(batch()[0])
    output = models.apply(GPT2, attached, ids)
    assert output.hidden.dtype == jnp.bfloat16
    assert float(jnp.abs(output.logits - models.apply(GPT2, half, ids).logits).max()) > 1e-2
    assert not np.array_equal(*(tree["trunk"]["layers"]["0"]["mlp"]["c_fc"]["kernel"] for tree in (merged, half)))
    for tree in (merged, models.for_decoding(GPT2, attached)):
        assert {leaf.dtype.name for leaf in jax.tree.leaves(tree)} == {"bfloat16"}


def test_attached_decoding_with_a_cache_equals_merged(bases):
    _, base = bases["gpt_neox", "lm"]
    adapter = random_adapter(NEOX, ALL)
    ids = jnp.asarray(batch()[0])
    expected = models.apply(NEOX, lora.merge(base, adapter, ALL.scale), ids).logits
    step = partial(models.apply, NEOX, lora.attach(base, adapter, ALL.scale))
    output = step(ids[:, :8], cache=models.init_cache(NEOX, *ids.shape))
    logits = [output.logits]
    for i in range(8, ids.shape[1]):
        output = step(ids[:, i : i + 1], cache=output.cache, cache_index=i)
        logits.append(output.logits)
    close(np.concatenate(logits, axis=1), expected, atol=1e-5 * np.abs(expected).max(), rtol=1e-5)


@pytest.mark.parametrize(("family", "shape", "named"), quick_first(5, ADAPTERS))
def test_adapters_go_both_ways(family, shape, named, bases, tmp_path):
    config = CONFIGS[family]
    folder, base = bases[family, "lm"]
    adapter = random_adapter(config, shape)
    layers = {path: name for name, (path, _) in lora.linear_layers(config).items()}
    paths = {tuple(key.key for key in keys[:-1]) for keys, _ in jax.tree_util.tree_leaves_with_path(adapter)}
    assert {layers[path] for path in paths} == {PREFIX[family].format(i) + layer for i in range(2) for layer in named}
    of_base = our_output(config, base)
    ours = our_output(config, lora.attach(base, adapter, shape.scale))
    close(our_output(config, lora.merge(base, adapter, shape.scale)), ours, atol=1e-5 * np.abs(of_base).max())
    assert np.abs(ours - of_base).max() > 0.1

    hf.peft.save_adapter(tmp_path / "ours", config, shape, adapter, base, str(folder), card="# A card\n")
    assert (tmp_path / "ours" / "README.md").read_text() == "# A card\n"
    theirs = from_peft(tmp_path / "ours", folder)
    result = theirs.load_adapter(tmp_path / "ours", "again")
    assert not result.unexpected_keys
    assert not [name for name in result.missing_keys if "lora_" in name]
    close(torch_output(theirs), ours)
    with theirs.disable_adapter():
        close(torch_output(theirs), of_base)
    close(torch_output(theirs.merge_and_unload()), ours)
    loaded_shape, loaded = hf.peft.load_adapter(tmp_path / "ours", config, base)
    assert_equal_trees(loaded, adapter)
    assert loaded_shape.scale == shape.scale
    assert shape.target_modules in (None, loaded_shape.target_modules)

    theirs = peft_adapted(folder, shape, family)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded_shape, adapter = hf.peft.load_adapter(tmp_path / "theirs", config, base)
    assert (loaded_shape.r, loaded_shape.scale) == (shape.r, shape.scale)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(adapter)} == {"float32"}
    expected = torch_output(theirs)
    close(our_output(config, lora.attach(base, adapter, loaded_shape.scale)), expected)
    assert np.abs(expected - of_base).max() > 0.1


@FAMILIES
def test_adapters_of_reward_models_go_both_ways(family, bases, tmp_path):
    config = CONFIGS[family]
    folder, base = bases[family, "score"]
    adapter = random_adapter(config, ALL, score=True)
    hf.peft.save_adapter(tmp_path / "ours", config, ALL, adapter, base, str(folder))
    ours = our_output(config, lora.attach(base, adapter, ALL.scale))
    close(torch_output(from_peft(tmp_path / "ours", folder, "score")), ours)
    raw = read(tmp_path / "ours", "adapter_config.json")
    assert (raw["task_type"], raw["modules_to_save"]) == ("SEQ_CLS", ["score"])
    without = lora.attach(base, {"trunk": adapter["trunk"]}, ALL.scale)
    assert np.abs(our_output(config, without) - ours).max() > 0.1  # or the head need not travel
    assert_equal_trees(hf.peft.load_adapter(tmp_path / "ours", config, base)[1], adapter)

    theirs = peft_adapted(folder, ALL, family, "score")
    theirs.save_pretrained(tmp_path / "theirs")
    loaded_shape, adapter = hf.peft.load_adapter(tmp_path / "theirs", config, base)
    assert set(adapter) == {"trunk", "score"}
    expected = torch_output(theirs)
    for make in (lora.attach, lora.merge):
        close(our_output(config, make(base, adapter, loaded_shape.scale)), expected)
    assert np.abs(expected - our_output(config, base)).max() > 0.1


@pytest.mark.full
@pytest.mark.parametrize("family", RAW)
def test_gradients_are_those_of_peft(family, bases, tmp_path):
    config = CONFIGS[family]
    folder, base = bases[family, "lm"]
    theirs = peft_adapted(folder, ALL, family)
    theirs.save_pretrained(tmp_path / "adapter")
    _, adapter = hf.peft.load_adapter(tmp_path / "adapter", config)
    ids, mask = batch()

    @jax.value_and_grad
    def loss(adapter):
        logits = models.apply(config, lora.attach(base, adapter, ALL.scale), jnp.asarray(ids)).logits
        return next_token_loss(logits, ids, mask)

    value, gradients = loss(adapter)
    computed = torch_loss(theirs, ids, mask)
    computed.backward()
    close(value, computed.item(), atol=1e-5)
    expected = peft_models.peft_gradients(theirs, tmp_path / "gradients", config)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4), gradients, expected)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-3


def test_save_adapter_writes_what_peft_writes(bases, tmp_path):
    shape = LoraConfig(r=4, target_modules=("c_attn",))
    folder, base = bases["gpt2", "lm"]
    peft_adapted(folder, shape, "gpt2").save_pretrained(tmp_path / "theirs")
    hf.peft.save_adapter(tmp_path / "ours", GPT2, shape, random_adapter(GPT2, shape), base, str(folder))
    theirs, ours = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "ours"))
    assert {name: (x.shape, x.dtype) for name, x in ours.items()} == {n: (x.shape, x.dtype) for n, x in theirs.items()}
    theirs, ours = (read(tmp_path / name, "adapter_config.json") for name in ("theirs", "ours"))
    assert {name: theirs[name] for name in ours} == ours
    about = model_files.read_metadata(tmp_path / "ours" / "adapter_model.safetensors")
    assert about == {"format": "pt", "base_fingerprint": lora.fingerprint(base)}


SECRET = "hf_" + "aB3dE6gH9jK2mN5pQ8sT"


def test_save_adapter_names_the_revision_of_its_base_as_peft_reads_it_and_no_secret(bases, tmp_path):
    shape = LoraConfig(r=4)
    adapter = random_adapter(GPT2, shape, score=True)
    adapter["score"]["bias"] = jnp.array([0.5])
    for base_model, written in (
        ("org/name@v1", ("org/name", "v1")),
        ("org/name", ("org/name", None)),
        ("/a/folder@x", ("/a/folder@x", None)),
        (f"https://me:{SECRET}@host/base", ("https://<redacted>@host/base", None)),
    ):
        hf.peft.save_adapter(tmp_path / "adapter", GPT2, shape, adapter, bases["gpt2", "score"][1], base_model)
        raw = read(tmp_path / "adapter", "adapter_config.json")
        assert (raw["base_model_name_or_path"], raw["revision"]) == written
        assert SECRET not in (tmp_path / "adapter" / "adapter_config.json").read_text()
    assert_equal_trees(hf.peft.load_adapter(tmp_path / "adapter", GPT2)[1], adapter)  # the bias, too


def test_save_adapter_replaces_only_an_adapter(saved, monkeypatch):
    folder, config, base = saved
    other = random_adapter(config, LoraConfig(r=2))
    hf.peft.save_adapter(folder, config, LoraConfig(r=2), other, base, "a-base")
    assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], other)
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    hf.save_pretrained(folder.parent / "model", config, base)
    save = partial(hf.peft.save_adapter, config=config, lora=LoraConfig(r=2), base=base, base_model="a-base")
    refused(f"^{folder.parent}/model: .*adapter_config.json", save, folder.parent / "model", adapter=other)
    assert_equal_trees(hf.load_pretrained(folder.parent / "model")[1], base)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "save_file", no_room)
    refused(f"^{folder}: ", save, folder, adapter=random_tree(other))
    assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], other)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["adapter", "model"]


def test_load_adapter_reads_a_config_of_defaults(saved):
    folder, config, base = saved
    expected = hf.peft.load_adapter(folder, config, base)
    defaults = peft.LoraConfig(r=4, lora_alpha=32, task_type="CAUSAL_LM", target_modules=["dense"]).to_dict()
    edit_json(folder / "adapter_config.json", **json.loads(json.dumps(defaults, default=list)))
    assert len(read(folder, "adapter_config.json")) > 35
    shape, adapter = hf.peft.load_adapter(folder, config, base)
    assert shape == LoraConfig(r=4, lora_alpha=32, target_modules=("dense",))
    assert_equal_trees(adapter, expected[1])
    for value in (True, False, "gaussian", "eva", "orthogonal"):  # these change the first draw alone
        edit_json(folder / "adapter_config.json", init_lora_weights=value, lora_dropout=0.1, fan_in_fan_out=True)
        assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], expected[1])


UNSUPPORTED = {
    "use_dora": True,
    "bias": "all",
    "rank_pattern": {"dense": 8},
    "exclude_modules": ["dense"],
    "use_qalora": True,
    "alora_invocation_tokens": [5],
    "lora_bias": True,
    "init_lora_weights": "pissa",
    "use_bdlora": {"nblocks": 2},
    "kasa_config": {"beta": 1},
    "arrow_config": {"top_k": 2},
    "monteclora_config": {"num_samples": 2},
}


MALFORMED = [
    ("peft_type", "LOHA"),
    ("peft_type", "REMOVE"),
    ("r", "REMOVE"),
    ("lora_alpha", None),
    ("target_modules", "(("),
    ("target_modules", 5),
    ("target_modules", ["dense", 1]),
    ("use_rslora", "false"),
]


def test_load_adapter_names_the_setting_that_is_malformed_or_not_supported(saved):
    folder, config, _ = saved
    file = folder / "adapter_config.json"
    before = file.read_text()
    for setting, value in (*UNSUPPORTED.items(), *MALFORMED):
        edit_json(file, **{setting: value})
        refused(f"^{file}: {setting}: ", hf.peft.load_adapter, folder, config)
        file.write_text(before)
    variants = {field.name for field in dataclasses.fields(peft.LoraConfig) if field.metadata.get("is_lora_variant")}
    backward_only = {"velora_config"}  # stores compressed activations for the backward pass
    assert variants - backward_only <= set(UNSUPPORTED)
    assert {"use_dora", "kasa_config"} <= variants


LAYER = "gpt_neox.layers.1.attention.dense"
A = "base_model.model.gpt_neox.layers.1.attention.dense.lora_A.weight"
B = A.replace("lora_A", "lora_B")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({A: None}, rf"{LAYER}, got \[.lora_B.\]"),
        ({B: None}, rf"{LAYER}, got \[.lora_A.\]"),
        ({A: np.zeros((4, 31), np.float32)}, rf"{A}: .*\(4, 32\).*\(4, 31\)"),
        ({B: np.zeros((4, 32), np.float32)}, rf"{B}: .*\(32, 4\).*\(4, 32\)"),
        ({A: None, B: None}, rf"{LAYER}, got \[\]"),
        ({A: np.zeros((4, 32), np.int8)}, f"{A}: .*I8"),
        ({"base_model.model.lm_head.weight": np.zeros((61, 32), np.float32)}, "base_model.model.lm_head.weight: "),
        (
            {"base_model.model.score.weight": np.zeros((3, 32), np.float32)},
            r"base_model.model.score.weight: .*\(1, 32\).*\(3, 32\)",
        ),
    ],
)
def test_load_adapter_names_the_tensor(changes, named, saved):
    folder, config, _ = saved
    edit_tensors(folder / "adapter_model.safetensors", changes)
    refused(rf"^{folder}: .*{named}", hf.peft.load_adapter, folder, config)


def test_load_adapter_asks_for_tensors(saved):
    folder, config, base = saved
    file = folder / "adapter_model.safetensors"
    edit_tensors(file, dict.fromkeys(load_file(file)))
    refused(f"{file.name}: .*no tensors", hf.peft.load_adapter, folder, config)
    file.unlink()
    hf.save_pretrained(folder.parent / "merged", config, base)  # weights of a whole model are no adapter
    (folder.parent / "merged" / "model.safetensors").rename(folder / "model.safetensors")
    refused(f"^{folder}: {file.name}: ", hf.peft.load_adapter, folder, config)
    (folder / "adapter_config.json").unlink()
    refused(f"^{folder}/adapter_config.json: ", hf.peft.load_adapter, folder, config)
    refused(f"^{folder}/gone: ", hf.peft.load_adapter, folder / "gone", config)


def test_load_adapter_refuses_one_of_another_base(saved):
    folder, config, base = saved
    hf.peft.load_adapter(folder, config, base)
    other = random_tree(base, seed=5)
    refused(rf"{lora.fingerprint(other)}.*{lora.fingerprint(base)}", hf.peft.load_adapter, folder, config, other)
    refused("gpt2", hf.peft.load_adapter, folder, GPT2)
    refused(
        r"lora_A.weight: .*\(4, 40\).*\(4, 32\)",
        hf.peft.load_adapter,
        folder,
        dataclasses.replace(config, hidden_size=40),
    )


@pytest.mark.parametrize("family", CONFIGS)
def test_fingerprint_is_that_of_the_numbers(family):
    base = random_params(CONFIGS[family])
    first = lora.fingerprint(base)
    assert len(first) == 16
    assert lora.fingerprint(jax.device_get(base)) == first
    assert lora.fingerprint(random_params(CONFIGS[family], seed=1)) != first  # another draw
    assert lora.fingerprint({"trunk": base["trunk"], "score": {"kernel": jnp.ones((32, 1))}}) == first
    leaves, structure = jax.tree.flatten(jax.device_get(base["trunk"]))
    for i, leaf in enumerate(leaves):
        changed = [*leaves[:i], leaf + 1, *leaves[i + 1 :]]
        assert lora.fingerprint({"trunk": structure.unflatten(changed)}) != first
