"""Adapters against PEFT itself: logits, gradients and folders, both ways; and against the base they leave alone."""

import dataclasses
import json
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.hf import files as model_files
from jaxppo.nn import lora
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.nn.llama_kinds import KINDS, LlamaConfig
from jaxppo.nn.lora import LoraConfig
from tests import quick_first

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
CONFIGS = {"gpt_neox": GPTNeoXConfig(**SIZES), "gpt2": GPT2Config(**SIZES, max_position_embeddings=64)}
CONFIGS |= {name: LlamaConfig(model_type=name, **SIZES, num_key_value_heads=2) for name in KINDS}
FAMILIES = pytest.mark.parametrize("family", quick_first(3, CONFIGS))
OF_LLAMA = (*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down")))
LAYERS = {name: OF_LLAMA for name in KINDS} | {
    "gpt_neox": ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    "gpt2": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
}
PREFIX = {name: "model.layers.{}." for name in KINDS} | {"gpt_neox": "gpt_neox.layers.{}.", "gpt2": "transformer.h.{}."}
# (family, shape, layers of both blocks that it names)
ADAPTERS = [
    ("gpt_neox", LoraConfig(r=4, lora_alpha=8), LAYERS["gpt_neox"]),
    ("gpt_neox", LoraConfig(r=3, lora_alpha=7, target_modules=("dense", "query_key_value")), LAYERS["gpt_neox"][:2]),
    (
        "gpt_neox",
        LoraConfig(r=4, lora_alpha=4, target_modules=r".*\.mlp\.dense_(h_to_4h|4h_to_h)", use_rslora=True),
        LAYERS["gpt_neox"][2:],
    ),
    ("gpt2", LoraConfig(r=4, lora_alpha=4, use_rslora=True), LAYERS["gpt2"]),
    (
        "gpt2",
        LoraConfig(r=4, lora_alpha=8, target_modules=("c_attn", "mlp.c_proj")),
        (LAYERS["gpt2"][0], LAYERS["gpt2"][3]),
    ),
    ("gpt2", LoraConfig(r=1, lora_alpha=2.5, target_modules=r".*\.c_proj"), LAYERS["gpt2"][1::2]),
    ("llama", LoraConfig(r=4, lora_alpha=8), OF_LLAMA),
    ("llama", LoraConfig(r=2, target_modules=("q_proj", "v_proj")), OF_LLAMA[:3:2]),
    *((name, LoraConfig(r=4, lora_alpha=8), OF_LLAMA) for name in KINDS if name != "llama"),
]
ADAPTER_CASES = pytest.mark.parametrize(("family", "shape", "named"), quick_first(8, ADAPTERS))

apply = jax.jit(models.apply, static_argnums=0, static_argnames="logits")


def assert_equal_trees(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def random_tree(tree, seed=0, scale=0.1):
    """The same shapes, every number random: no bias, norm or factor is left at its first value."""
    leaves, structure = jax.tree.flatten(tree)
    generator = np.random.default_rng(seed)
    return structure.unflatten([leaf + scale * generator.normal(size=leaf.shape).astype(np.float32) for leaf in leaves])


def random_base(config, head="lm"):
    return random_tree(models.init_params(config, jax.random.key(0), head), scale=0.2)


def random_adapter(config, shape, score=False):
    adapter = random_tree(lora.init_adapter(config, shape, jax.random.key(1)), seed=1)
    if score:
        adapter["score"] = random_tree(models.init_score_head(config, jax.random.key(2)), seed=2, scale=0.5)
    return adapter


def batch(rows=4, width=9):
    """(ids, mask, lengths), padded on the right."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, width + 1, rows)
    mask = np.arange(width) < lengths[:, None]
    return np.where(mask, generator.integers(3, 61, (rows, width)), 1), mask, lengths


def our_output(config, params):
    """Logits at real tokens, or scores at the last of each row."""
    ids, mask, lengths = batch()
    output = apply(config, params, jnp.asarray(ids), logits="score" not in params)
    if "score" in params:
        return models.scores(params, output.hidden)[np.arange(len(ids)), lengths - 1]
    return np.asarray(output.logits)[mask]


def torch_output(model):
    """The same of a model of transformers or PEFT."""
    torch = pytest.importorskip("torch")
    ids, mask, _ = batch()
    with torch.no_grad():
        logits = model.eval()(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int))).logits.numpy()
    return logits[:, 0] if logits.ndim == 2 else logits[mask]


def torch_base(folder, head="lm"):
    transformers = pytest.importorskip("transformers")
    auto = {"lm": "AutoModelForCausalLM", "score": "AutoModelForSequenceClassification"}[head]
    return getattr(transformers, auto).from_pretrained(folder)


def peft_adapted(folder, shape, family, head="lm"):
    """A base of transformers under a random adapter of PEFT's."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    torch.manual_seed(0)
    targets = shape.target_modules
    config = peft.LoraConfig(
        r=shape.r,
        lora_alpha=shape.lora_alpha,
        target_modules="all-linear" if targets is None else targets if isinstance(targets, str) else list(targets),
        use_rslora=shape.use_rslora,
        fan_in_fan_out=family == "gpt2",
        init_lora_weights=False,
        task_type={"lm": "CAUSAL_LM", "score": "SEQ_CLS"}[head],
        modules_to_save=["score"] if head == "score" else None,
    )
    model = peft.get_peft_model(torch_base(folder, head), config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.5 if "score" in name else 0.1))
    return model


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """(family, head) -> (folder, params) of a base of which no number is at its first value."""
    made = {}
    for family, config in CONFIGS.items():
        for head in ("lm", "score"):
            folder = tmp_path_factory.mktemp(f"{family}-{head}")
            params = random_base(config, head)
            hf.save_pretrained(folder / "base", config, params)
            made[family, head] = folder / "base", params
    return made


@pytest.fixture
def saved(tmp_path, bases):
    """(folder, config, base) of an adapter on GPT-NeoX, written by us."""
    config, shape = CONFIGS["gpt_neox"], LoraConfig(r=4)
    _, base = bases["gpt_neox", "lm"]
    hf.peft.save_adapter(tmp_path / "adapter", config, shape, random_adapter(config, shape), base, "a-base")
    return tmp_path / "adapter", config, base


def edit_config(folder, **changes):
    file = folder / "adapter_config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in raw.items() if value != "REMOVE"}))


def edit_tensors(folder, changes):
    file = folder / "adapter_model.safetensors"
    about = model_files.read_metadata(file)
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file, about)


# ---------------------------------------------------------------------------------------------- shape


@pytest.mark.parametrize(
    ("r", "alpha", "stable", "scale"), [(4, 8, False, 2.0), (4, 8, True, 4.0), (16, 1, False, 1 / 16)]
)
def test_scale_is_alpha_over_rank_or_its_root(r, alpha, stable, scale):
    assert LoraConfig(r=r, lora_alpha=alpha, use_rslora=stable).scale == scale


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("r", 0, "an integer >= 1, got 0"),
        ("r", 2.0, "an integer >= 1, got 2.0"),
        ("lora_alpha", 0, "a finite number above 0, got 0"),
        ("lora_alpha", float("nan"), "a finite number above 0, got nan"),
        ("lora_alpha", "8", "a finite number above 0, got '8'"),
        ("target_modules", "(dense", "a regular expression, got: missing"),
    ],
)
def test_lora_config_names_a_bad_field(field, value, expected):
    with pytest.raises(ModelError, match=f"^{field}: expected {expected}"):
        LoraConfig(**{field: value})


@pytest.mark.parametrize("targets", [("dense",), ("attention.dense",), ("h_to_4h",), "dense", r".*dense", r".*1\..*"])
def test_targets_are_those_of_peft(targets):
    tuners_utils = pytest.importorskip("peft.tuners.tuners_utils")
    peft_targets = targets if isinstance(targets, str) else list(targets)
    theirs = pytest.importorskip("peft").LoraConfig(target_modules=peft_targets)
    names = list(lora.linear_layers(CONFIGS["gpt_neox"]))
    expected = [name for name in names if tuners_utils.check_target_module_exists(theirs, name)]
    assert [name for name in names if LoraConfig(target_modules=targets).targets(name)] == expected


@FAMILIES
def test_linear_layers_are_those_of_transformers(family):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = CONFIGS[family]
    raw = hf.config_to_hf(config, "lm")
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**raw))
    expected = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name and "embed_out" not in name:
            expected[name] = (module.in_features, module.out_features)
        if type(module).__name__ == "Conv1D":
            expected[name] = (module.nx, module.nf)
    assert {name: shape for name, (_, shape) in lora.linear_layers(config).items()} == expected
    params = models.init_params(config, jax.random.key(0))
    for path, shape in lora.linear_layers(config).values():
        layer = params
        for part in path:
            layer = layer[part]
        assert layer["kernel"].shape == shape


@ADAPTER_CASES
def test_init_adapter_is_on_the_layers_that_are_named(family, shape, named):
    config = CONFIGS[family]
    adapter = lora.init_adapter(config, shape, jax.random.key(0))
    kernels = lora.linear_layers(config)
    expected = {PREFIX[family].format(i) + layer for i in range(2) for layer in named}
    assert expected <= set(kernels)
    found = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(adapter):
        *path, factor = (key.key for key in keys)
        found.setdefault(tuple(path), {})[factor] = leaf.shape
    by_path = {path: (name, sizes) for name, (path, sizes) in kernels.items()}
    assert {by_path[path][0] for path in found} == expected
    for path, factors in found.items():
        inputs, outputs = by_path[path][1]
        assert factors == {"lora_a": (inputs, shape.r), "lora_b": (shape.r, outputs)}


def test_init_adapter_names_targets_that_are_not_there():
    for targets in (("q_proj",), r"nothing\d"):
        with pytest.raises(
            ModelError, match="lora_target_modules: expected names among dense, query_key_value, dense_"
        ):
            lora.init_adapter(CONFIGS["gpt_neox"], LoraConfig(target_modules=targets), jax.random.key(0))


def test_init_adapter_draws_as_peft_does(bases):
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    folder, _ = bases["gpt_neox", "lm"]
    theirs = peft.get_peft_model(torch_base(folder), peft.LoraConfig(r=64, target_modules=["query_key_value"]))
    drawn = {name: p.detach().numpy() for name, p in theirs.named_parameters() if "lora_" in name}
    shape = LoraConfig(r=64, target_modules=("query_key_value",))
    adapter = lora.init_adapter(CONFIGS["gpt_neox"], shape, jax.random.key(0))
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
    again, other = (lora.init_adapter(CONFIGS["gpt_neox"], shape, jax.random.key(seed)) for seed in (0, 1))
    assert_equal_trees(adapter, again)
    assert not np.array_equal(a[0], other["trunk"]["layers"]["0"]["attention"]["query_key_value"]["lora_a"])


# ---------------------------------------------------------------------------------------------- attach and merge


@pytest.mark.full
@FAMILIES
def test_a_new_adapter_changes_no_bit(family, bases):
    config, shape = CONFIGS[family], LoraConfig(r=4)
    _, base = bases[family, "lm"]
    adapter = lora.init_adapter(config, shape, jax.random.key(0))
    attached, merged = (make(base, adapter, shape.scale) for make in (lora.attach, lora.merge))
    assert_equal_trees(merged, base)
    ids = jnp.asarray(batch()[0])
    expected = models.apply(config, base, ids).logits
    np.testing.assert_array_equal(models.apply(config, attached, ids).logits, expected)
    # Compiled as one program, the sums of a model with places for an adapter may be rounded elsewhere.
    np.testing.assert_allclose(apply(config, attached, ids).logits, apply(config, base, ids).logits, atol=5e-6, rtol=0)


@FAMILIES
def test_attach_shares_the_arrays_of_the_base(family, bases):
    config, shape = CONFIGS[family], LoraConfig(r=4)
    _, base = bases[family, "lm"]
    before = jax.tree.map(np.array, base)
    expected = our_output(config, base)
    tuned = lora.attach(base, random_adapter(config, shape, score=True), shape.scale)
    of_tuned = {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tuned)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(base):
        assert of_tuned.pop(path) is leaf
    assert {path[-1].key for path in of_tuned} == {"lora_a", "lora_b", "kernel"}  # the last is the score head's
    assert np.abs(our_output(config, {"trunk": tuned["trunk"]} | _head_of(base)) - expected).max() > 0.1
    np.testing.assert_array_equal(our_output(config, base), expected)  # the adapter off
    assert_equal_trees(base, before)


def _head_of(params):
    return {name: params[name] for name in ("lm_head",) if name in params}


def test_attach_takes_one_base_under_many_adapters(bases):
    config = CONFIGS["gpt_neox"]
    _, base = bases["gpt_neox", "lm"]
    policy_shape, value_shape = LoraConfig(r=4), LoraConfig(r=2, target_modules=("dense",))
    policy = lora.attach(base, random_adapter(config, policy_shape), policy_shape.scale)
    value = lora.attach(base, random_adapter(config, value_shape, score=True), value_shape.scale)
    ids, _, _ = batch()
    alone = [apply(config, params, jnp.asarray(ids)).logits for params in (base, policy, value)]
    assert all(np.abs(one - other).max() > 0.1 for one, other in zip(alone, alone[1:] + alone[:1], strict=True))
    embeddings = {id(params["trunk"]["embed_in"]["embedding"]) for params in (base, policy, value)}
    assert len(embeddings) == 1


@ADAPTER_CASES
def test_merge_equals_attach(family, shape, named, bases):
    config = CONFIGS[family]
    _, base = bases[family, "lm"]
    adapter = random_adapter(config, shape)
    attached, merged = (make(base, adapter, shape.scale) for make in (lora.attach, lora.merge))
    assert jax.tree.structure(merged) == jax.tree.structure(base)
    assert np.abs(our_output(config, merged) - our_output(config, base)).max() > 0.1
    scale = np.abs(our_output(config, base)).max()
    np.testing.assert_allclose(our_output(config, attached), our_output(config, merged), atol=1e-5 * scale, rtol=1e-5)


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
        found = jax.make_jaxpr(partial(lora.merged, dtype=dtype))(params)
    (product,) = (step for step in found.eqns if step.primitive.name == "dot_general")
    assert {each.name for each in product.params["precision"]} == {precision}
    assert [kernel.dtype for kernel in found.out_avals] == [dtype or "float32"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_merge_keeps_the_dtype_of_the_base(dtype, bases):
    config, shape = CONFIGS["gpt2"], LoraConfig(r=4)
    _, base = bases["gpt2", "lm"]
    half = jax.tree.map(lambda x: jnp.asarray(x, dtype), base)
    merged = lora.merge(half, random_adapter(config, shape), shape.scale)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(merged)} == {dtype}
    assert not np.array_equal(*(tree["trunk"]["layers"]["0"]["mlp"]["c_fc"]["kernel"] for tree in (merged, half)))


def test_an_adapter_leaves_the_dtype_of_a_half_precision_base(bases):
    """A float32 adapter would otherwise turn the residual stream, and the cache, into float32."""
    config, shape = CONFIGS["gpt2"], LoraConfig(r=4)
    _, base = bases["gpt2", "lm"]
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), base)
    attached = lora.attach(half, random_adapter(config, shape), shape.scale)
    ids = jnp.asarray(batch()[0])
    output = apply(config, attached, ids)
    assert output.hidden.dtype == jnp.bfloat16
    plain = apply(config, half, ids)
    assert float(jnp.abs(output.logits - plain.logits).max()) > 1e-2
    ready = models.for_decoding(config, attached)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(ready)} == {"bfloat16"}


@FAMILIES
def test_attached_decoding_with_a_cache_equals_merged(family, bases):
    config, shape = CONFIGS[family], LoraConfig(r=4, lora_alpha=8)
    _, base = bases[family, "lm"]
    adapter = random_adapter(config, shape)
    ids = jnp.asarray(batch()[0])
    expected = apply(config, lora.merge(base, adapter, shape.scale), ids).logits

    @jax.jit
    def step(adapter, cache, new_ids, index):
        params = lora.attach(base, adapter, shape.scale)
        return models.apply(config, params, new_ids, cache=cache, cache_index=index)

    output = step(adapter, models.init_cache(config, *ids.shape), ids[:, :5], 0)
    logits = [output.logits]
    for i in range(5, ids.shape[1]):
        output = step(adapter, output.cache, ids[:, i : i + 1], i)
        logits.append(output.logits)
    atol = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(logits, axis=1), expected, atol=atol, rtol=1e-5)


# ---------------------------------------------------------------------------------------------- PEFT, both ways


@ADAPTER_CASES
def test_peft_loads_what_we_save(family, shape, named, bases, tmp_path):
    peft = pytest.importorskip("peft")
    config = CONFIGS[family]
    folder, base = bases[family, "lm"]
    adapter = random_adapter(config, shape)
    hf.peft.save_adapter(tmp_path, config, shape, adapter, base, str(folder), card="# A card\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of missing keys, or of a wrong fan_in_fan_out
        theirs = peft.PeftModel.from_pretrained(torch_base(folder), tmp_path)
    result = theirs.load_adapter(tmp_path, "again")
    assert not result.unexpected_keys
    assert not [name for name in result.missing_keys if "lora_" in name]
    ours = our_output(config, lora.attach(base, adapter, shape.scale))
    np.testing.assert_allclose(torch_output(theirs), ours, atol=1e-4, rtol=0)
    with theirs.disable_adapter():
        np.testing.assert_allclose(torch_output(theirs), our_output(config, base), atol=1e-4, rtol=0)
    assert np.abs(ours - our_output(config, base)).max() > 0.1
    np.testing.assert_allclose(torch_output(theirs.merge_and_unload()), ours, atol=1e-4, rtol=0)
    assert (tmp_path / "README.md").read_text() == "# A card\n"
    loaded_shape, loaded = hf.peft.load_adapter(tmp_path, config, base)
    assert_equal_trees(loaded, adapter)
    assert loaded_shape.scale == shape.scale
    if shape.target_modules is not None:
        assert loaded_shape.target_modules == shape.target_modules


@ADAPTER_CASES
def test_we_load_what_peft_saves(family, shape, named, bases, tmp_path):
    config = CONFIGS[family]
    folder, base = bases[family, "lm"]
    theirs = peft_adapted(folder, shape, family)
    theirs.save_pretrained(tmp_path)
    loaded_shape, adapter = hf.peft.load_adapter(tmp_path, config, base)
    assert (loaded_shape.r, loaded_shape.scale) == (shape.r, shape.scale)
    assert len(jax.tree.leaves(adapter)) == 2 * 2 * len(named)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(adapter)} == {"float32"}
    expected = torch_output(theirs)
    ours = our_output(config, lora.attach(base, adapter, loaded_shape.scale))
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)
    assert np.abs(expected - our_output(config, base)).max() > 0.1


@FAMILIES
def test_peft_loads_our_reward_model_adapter(family, bases, tmp_path):
    peft = pytest.importorskip("peft")
    config, shape = CONFIGS[family], LoraConfig(r=4, lora_alpha=8)
    folder, base = bases[family, "score"]
    adapter = random_adapter(config, shape, score=True)
    hf.peft.save_adapter(tmp_path, config, shape, adapter, base, str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        theirs = peft.PeftModel.from_pretrained(torch_base(folder, "score"), tmp_path)
    ours = our_output(config, lora.attach(base, adapter, shape.scale))
    np.testing.assert_allclose(torch_output(theirs), ours, atol=1e-4, rtol=0)
    raw = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (raw["task_type"], raw["modules_to_save"]) == ("SEQ_CLS", ["score"])
    without = lora.attach(base, {"trunk": adapter["trunk"]}, shape.scale)
    assert np.abs(our_output(config, without) - ours).max() > 0.1  # or the head need not travel
    assert_equal_trees(hf.peft.load_adapter(tmp_path, config, base)[1], adapter)


@FAMILIES
def test_we_load_the_reward_model_adapter_of_peft(family, bases, tmp_path):
    config, shape = CONFIGS[family], LoraConfig(r=4, lora_alpha=8)
    folder, base = bases[family, "score"]
    theirs = peft_adapted(folder, shape, family, "score")
    theirs.save_pretrained(tmp_path)
    loaded_shape, adapter = hf.peft.load_adapter(tmp_path, config, base)
    assert set(adapter) == {"trunk", "score"}
    ours = our_output(config, lora.attach(base, adapter, loaded_shape.scale))
    np.testing.assert_allclose(ours, torch_output(theirs), atol=1e-4, rtol=0)
    merged = lora.merge(base, adapter, loaded_shape.scale)
    np.testing.assert_allclose(our_output(config, merged), torch_output(theirs), atol=1e-4, rtol=0)
    assert np.abs(ours - our_output(config, base)).max() > 0.1


@pytest.mark.full
@FAMILIES
def test_gradients_are_those_of_peft(family, bases, tmp_path):
    torch = pytest.importorskip("torch")
    config, shape = CONFIGS[family], LoraConfig(r=4, lora_alpha=8)
    folder, base = bases[family, "lm"]
    theirs = peft_adapted(folder, shape, family)
    theirs.save_pretrained(tmp_path / "adapter")
    _, adapter = hf.peft.load_adapter(tmp_path / "adapter", config)
    ids, mask, _ = batch()
    counted = mask[:, 1:]

    def loss(adapter):
        logits = models.apply(config, lora.attach(base, adapter, shape.scale), jnp.asarray(ids)).logits
        logprobs = jax.nn.log_softmax(logits[:, :-1])
        picked = jnp.take_along_axis(logprobs, jnp.asarray(ids)[:, 1:, None], axis=-1)[..., 0]
        return -jnp.where(counted, picked, 0).sum() / counted.sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(adapter)
    labels = torch.tensor(np.where(mask, ids, -100))
    computed = theirs(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int)), labels=labels).loss
    computed.backward()
    np.testing.assert_allclose(value, computed.item(), atol=1e-5)
    with torch.no_grad():  # through the folder the gradients reach the places of their factors
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.grad)
    theirs.save_pretrained(tmp_path / "gradients")
    _, expected = hf.peft.load_adapter(tmp_path / "gradients", config)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4), gradients, expected)
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 1e-3


# ---------------------------------------------------------------------------------------------- folders


def test_save_adapter_writes_what_peft_writes(bases, tmp_path):
    config, shape = CONFIGS["gpt2"], LoraConfig(r=4, target_modules=("c_attn",))
    folder, base = bases["gpt2", "lm"]
    peft_adapted(folder, shape, "gpt2").save_pretrained(tmp_path / "theirs")
    hf.peft.save_adapter(tmp_path / "ours", config, shape, random_adapter(config, shape), base, str(folder))
    theirs, ours = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "ours"))
    assert {name: (x.shape, x.dtype) for name, x in ours.items()} == {n: (x.shape, x.dtype) for n, x in theirs.items()}
    theirs, ours = (json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("theirs", "ours"))
    assert {name: theirs[name] for name in ours} == ours
    about = model_files.read_metadata(tmp_path / "ours" / "adapter_model.safetensors")
    assert about == {"format": "pt", "base_fingerprint": lora.fingerprint(base)}


def test_save_adapter_keeps_the_bias_of_a_score_head(bases, tmp_path):
    config, shape = CONFIGS["gpt2"], LoraConfig(r=4)
    _, base = bases["gpt2", "score"]
    adapter = random_adapter(config, shape, score=True)
    adapter["score"]["bias"] = jnp.array([0.5])
    hf.peft.save_adapter(tmp_path, config, shape, adapter, base, "a-base")
    assert_equal_trees(hf.peft.load_adapter(tmp_path, config)[1], adapter)


@pytest.mark.parametrize(
    ("base_model", "written"),
    [("org/name@v1", ("org/name", "v1")), ("org/name", ("org/name", None)), ("/a/folder@x", ("/a/folder@x", None))],
)
def test_save_adapter_names_the_revision_of_its_base_as_peft_reads_it(bases, tmp_path, base_model, written):
    config, shape = CONFIGS["gpt2"], LoraConfig(r=4)
    hf.peft.save_adapter(tmp_path, config, shape, random_adapter(config, shape), bases["gpt2", "lm"][1], base_model)
    raw = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (raw["base_model_name_or_path"], raw["revision"]) == written


def test_save_adapter_writes_no_secret(bases, tmp_path):
    config, shape, secret = CONFIGS["gpt2"], LoraConfig(r=4), "hf_" + "aB3dE6gH9jK2mN5pQ8sT"
    hf.peft.save_adapter(
        tmp_path, config, shape, random_adapter(config, shape), bases["gpt2", "lm"][1], f"https://me:{secret}@host/base"
    )
    raw = (tmp_path / "adapter_config.json").read_text()
    assert secret not in raw
    assert json.loads(raw)["base_model_name_or_path"] == "https://<redacted>@host/base"


def test_save_adapter_replaces_only_an_adapter(saved):
    folder, config, base = saved
    other = random_adapter(config, LoraConfig(r=2))
    hf.peft.save_adapter(folder, config, LoraConfig(r=2), other, base, "a-base")
    assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], other)
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    hf.save_pretrained(folder.parent / "model", config, base)
    with pytest.raises(ModelError, match=r"expected a new or empty folder or one with adapter_config.json, got other"):
        hf.peft.save_adapter(folder.parent / "model", config, LoraConfig(r=2), other, base, "a-base")
    assert_equal_trees(hf.load_pretrained(folder.parent / "model")[1], base)


def test_save_adapter_on_a_full_disk_leaves_the_earlier_one(saved, monkeypatch):
    folder, config, base = saved
    _, before = hf.peft.load_adapter(folder, config, base)

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "save_file", no_room)
    with pytest.raises(ModelError, match=rf"^{folder}: expected to be writable, got: .*No space left on device"):
        hf.peft.save_adapter(folder, config, LoraConfig(r=4), random_tree(before), base, "a-base")
    assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], before)
    assert list(folder.parent.iterdir()) == [folder]


def test_load_adapter_reads_a_config_of_defaults(saved):
    peft = pytest.importorskip("peft")
    folder, config, base = saved
    expected = hf.peft.load_adapter(folder, config, base)
    defaults = peft.LoraConfig(r=4, lora_alpha=32, task_type="CAUSAL_LM", target_modules=["dense"]).to_dict()
    edit_config(folder, **json.loads(json.dumps(defaults, default=list)))
    assert len(json.loads((folder / "adapter_config.json").read_text())) > 35
    shape, adapter = hf.peft.load_adapter(folder, config, base)
    assert shape == LoraConfig(r=4, lora_alpha=32, target_modules=("dense",))
    assert_equal_trees(adapter, expected[1])


UNSUPPORTED = {
    "use_dora": True,
    "bias": "all",
    "layers_to_transform": [0],
    "rank_pattern": {"dense": 8},
    "alpha_pattern": {"dense": 8},
    "exclude_modules": ["dense"],
    "trainable_token_indices": [1, 2],
    "target_parameters": ["weight"],
    "use_qalora": True,
    "alora_invocation_tokens": [5],
    "lora_bias": True,
    "layer_replication": [[0, 2]],
    "init_lora_weights": "pissa",
    "use_bdlora": {"nblocks": 2},
    "kasa_config": {"beta": 1},
    "arrow_config": {"top_k": 2},
    "monteclora_config": {"num_samples": 2},
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *UNSUPPORTED.items(),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("bias", "lora_only"),
    ],
)
def test_load_adapter_names_the_setting_that_is_not_supported(setting, value, saved):
    folder, config, _ = saved
    edit_config(folder, **{setting: value})
    message = rf"^{folder}/adapter_config.json: {setting}: expected .* \(others are not supported\), got "
    with pytest.raises(ModelError, match=message):
        hf.peft.load_adapter(folder, config)


def test_load_adapter_knows_every_variant_of_peft():
    peft = pytest.importorskip("peft")
    variants = {field.name for field in dataclasses.fields(peft.LoraConfig) if field.metadata.get("is_lora_variant")}
    backward_only = {"velora_config"}  # stores compressed activations for the backward pass
    assert variants - backward_only <= set(UNSUPPORTED)
    assert {"use_dora", "kasa_config"} <= variants


@pytest.mark.parametrize("value", [True, False, "gaussian", "eva", "orthogonal"])
def test_load_adapter_takes_what_only_changed_the_first_draw(value, saved):
    folder, config, base = saved
    _, expected = hf.peft.load_adapter(folder, config, base)
    edit_config(folder, init_lora_weights=value, lora_dropout=0.1, fan_in_fan_out=True)
    assert_equal_trees(hf.peft.load_adapter(folder, config, base)[1], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type: expected 'LORA', got 'LOHA'"),
        ({"peft_type": "REMOVE"}, "peft_type: expected 'LORA', got None"),
        ({"r": "REMOVE"}, "r: expected an integer >= 1, got None"),
        ({"r": 0}, "r: expected an integer >= 1, got 0"),
        ({"lora_alpha": None}, "lora_alpha: expected a finite number above 0, got None"),
        ({"target_modules": "(("}, "target_modules: expected a regular expression, got: "),
        ({"target_modules": 5}, "target_modules: expected names of layers or a regular expression, got 5"),
        ({"target_modules": ["dense", 1]}, "target_modules: expected names of layers or .*, got .'dense', 1."),
        ({"target_modules": [None]}, "target_modules: expected names of layers or .*, got .None."),
        ({"use_rslora": "false"}, "use_rslora: expected true or false, got 'false'"),
    ],
)
def test_load_adapter_names_the_config_key(changes, message, saved):
    folder, config, _ = saved
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=f"^{folder}/adapter_config.json: {message}"):
        hf.peft.load_adapter(folder, config)


A = "base_model.model.gpt_neox.layers.1.attention.dense.lora_A.weight"
B = A.replace("lora_A", "lora_B")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({A: None}, "expected both factors of trunk/layers/1/attention/dense, got lora_b alone"),
        ({B: None}, "expected both factors of trunk/layers/1/attention/dense, got lora_a alone"),
        ({A: np.zeros((4, 31), np.float32)}, rf"{A}: expected shape \(4, 32\) on this base, got \(4, 31\)"),
        ({B: np.zeros((4, 32), np.float32)}, rf"{B}: expected shape \(32, 4\) on this base, got \(4, 32\)"),
        (
            {A: None, B: None},
            "expected an adapter for gpt_neox.layers.1.attention.dense, as target_modules say, got none",
        ),
        ({A: np.zeros((4, 32), np.int8)}, f"{A}: expected floating-point weights, got I8"),
        (
            {"base_model.model.lm_head.weight": np.zeros((61, 32), np.float32)},
            "base_model.model.lm_head.weight: expected an adapter for a linear layer of this gpt_neox model",
        ),
        (
            {A.replace("layers.1", "layers.2"): np.zeros((4, 32), np.float32)},
            "layers.2.attention.dense.lora_A.weight: expected an adapter for a linear layer of this gpt_neox model",
        ),
        (
            {"base_model.model.score.weight": np.zeros((3, 32), np.float32)},
            r"base_model.model.score.weight: expected shape \(1, 32\) on this base, got \(3, 32\)",
        ),
    ],
)
def test_load_adapter_names_the_tensor(changes, message, saved):
    folder, config, _ = saved
    edit_tensors(folder, changes)
    with pytest.raises(ModelError, match=rf"^{folder}: .*{message}"):
        hf.peft.load_adapter(folder, config)


def test_load_adapter_asks_for_tensors(saved):
    folder, config, base = saved
    edit_tensors(folder, dict.fromkeys(load_file(folder / "adapter_model.safetensors")))
    with pytest.raises(
        ModelError, match=r"adapter_model.safetensors: expected an adapter for some layer, got no tensors"
    ):
        hf.peft.load_adapter(folder, config)
    (folder / "adapter_model.safetensors").unlink()
    hf.save_pretrained(folder.parent / "merged", config, base)  # weights of a whole model are no adapter
    (folder.parent / "merged" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(ModelError, match=rf"^{folder}: adapter_model.safetensors: expected a readable .*No such file"):
        hf.peft.load_adapter(folder, config)


def test_load_adapter_refuses_one_of_another_base(saved):
    folder, config, base = saved
    hf.peft.load_adapter(folder, config, base)
    other = random_tree(base, seed=5)
    message = rf"expected an adapter of this base \({lora.fingerprint(other)}\), got one of .*{lora.fingerprint(base)}"
    with pytest.raises(ModelError, match=rf"^{folder}: adapter_model.safetensors: {message}"):
        hf.peft.load_adapter(folder, config, other)
    with pytest.raises(ModelError, match=r"expected an adapter for a linear layer of this gpt2 model, got another"):
        hf.peft.load_adapter(folder, CONFIGS["gpt2"])
    wider = GPTNeoXConfig(**(SIZES | {"hidden_size": 40}))
    with pytest.raises(ModelError, match=r"expected shape .* on this base, got "):
        hf.peft.load_adapter(folder, wider)


def test_load_adapter_names_the_folder_that_is_none(tmp_path):
    with pytest.raises(ModelError, match=rf"^{tmp_path}/gone: expected a .* folder"):
        hf.peft.load_adapter(tmp_path / "gone", CONFIGS["gpt2"])
    with pytest.raises(ModelError, match=rf"^{tmp_path}/adapter_config.json: expected a file of .*, got no file"):
        hf.peft.load_adapter(tmp_path, CONFIGS["gpt2"])


@pytest.mark.parametrize("family", CONFIGS)
def test_fingerprint_is_that_of_the_numbers(family, bases):
    _, base = bases[family, "lm"]
    first = lora.fingerprint(base)
    assert len(first) == 16
    assert lora.fingerprint(jax.device_get(base)) == first
    assert lora.fingerprint(bases[family, "score"][1]) != first  # another draw
    assert lora.fingerprint({"trunk": base["trunk"], "score": {"kernel": jnp.ones((32, 1))}}) == first
    leaves, structure = jax.tree.flatten(base["trunk"])
    for i, leaf in enumerate(leaves):
        changed = [*leaves[:i], leaf + 1, *leaves[i + 1 :]]
        assert lora.fingerprint({"trunk": structure.unflatten(changed)}) != first
