"""Model folders against transformers itself: what it writes we read, what we write it reads, bit for bit."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file

from jaxppo import hf
from jaxppo.nn import FAMILIES
from tests.torch_models import (
    CONFIGS,
    RAW,
    assert_equal_tensors,
    assert_equal_trees,
    edit_config,
    edit_tensors,
    random_params,
    read,
    refused,
    torch,
    torch_model,
    word_tokenizer,
)

CONFIG, GPT2 = CONFIGS["gpt_neox"], CONFIGS["gpt2"]
QKV = "gpt_neox.layers.1.attention.query_key_value.weight"
WEIGHTS = "model.safetensors"


def torch_folder(folder, family="gpt_neox", head="lm", **options):
    model = torch_model(RAW[family] | options, head)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def params():
    return random_params(CONFIG)


@pytest.fixture
def saved(params, tmp_path):
    hf.save_pretrained(tmp_path / "model", CONFIG, params)
    return tmp_path / "model"


def to_bin(folder, rename=lambda name: name, **more):
    """Turn model.safetensors into pytorch_model.bin, as torch.save of a state dict writes it."""
    tensors = load_file(folder / WEIGHTS)
    state = {rename(name): torch.tensor(tensor) for name, tensor in tensors.items()} | more
    torch.save(state, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def test_save_pretrained_writes_the_generation_config_and_no_secret(params, tmp_path):
    secret = "hf_" + "aB3dE6gH9jK2mN5pQ8sT"
    raw = RAW["gpt_neox"] | {"hub_token": secret, "note": f"made with {secret}", "url": "https://me:pass@host/path"}
    config = dataclasses.replace(hf.config_from_hf(raw), bos_token_id=None)
    tokens = {"eos_token_id": 2, "pad_token_id": 1}
    more = {"max_new_tokens": 9, "eos_token_id": [2, 3]}
    for choice, written in ((True, tokens), (more | {"auth_token": secret}, tokens | more), (False, None)):
        hf.save_pretrained(tmp_path / "model", config, params, generation_config=choice)
        file = tmp_path / "model" / "generation_config.json"
        content = json.loads(file.read_text()) if file.exists() else {"auth_token": None}
        assert secret not in str(content.pop("auth_token", None))
        assert content == (written or {})
    text = (tmp_path / "model" / "config.json").read_text()
    assert secret not in text and "me:pass" not in text
    assert read(tmp_path / "model")["note"] == "made with <redacted>"
    assert hf.load_pretrained(tmp_path / "model")[0] == config


def test_load_pretrained_gives_the_dtype_asked_for(saved, params, tmp_path):
    for dtype in ("bfloat16", "float16"):
        _, half = hf.load_pretrained(saved, dtype=dtype)
        assert_equal_trees(half, jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), params))
        assert {leaf.dtype.name for leaf in jax.tree.leaves(half)} == {dtype}
        hf.save_pretrained(tmp_path / "half", CONFIG, half)
        _, wide = hf.load_pretrained(tmp_path / "half")
        assert_equal_trees(wide, half)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(wide)} == {"float32"}
    refused("^dtype: .*int8", hf.load_pretrained, saved, dtype="int8")
    refused("^head: .*value", hf.load_model, saved, head="value")


@pytest.mark.parametrize("prefix", ["transformer.", ""], ids=["prefix", "no prefix"])
def test_load_model_reads_a_gpt2_of_old_with_a_value_head(prefix, tmp_path):
    # As TRL's tutorials saved them and, without the prefix, as in the first gpt2: buffers, the tied head again, v_head.
    model = torch_folder(tmp_path, "gpt2")
    _, expected = hf.load_pretrained(tmp_path)
    more = {"lm_head.weight": model.lm_head.weight.detach().clone()}
    for i in range(2):
        more[f"{prefix}h.{i}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        more[f"{prefix}h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    more |= {"v_head.summary.weight": torch.arange(32.0)[None] / 8, "v_head.summary.bias": torch.tensor([0.25])}
    to_bin(tmp_path, lambda name: name.replace("transformer.", prefix), **more)
    loaded = hf.load_model(tmp_path)
    assert_equal_trees(loaded.params, expected)
    assert loaded.fresh == ()
    assert loaded.unused == ("v_head.summary.bias", "v_head.summary.weight")
    assert f"{prefix}wte.weight" in loaded.loaded
    value_head = hf.load_value_head(tmp_path, loaded.config)
    np.testing.assert_array_equal(value_head["kernel"], np.arange(32, dtype=np.float32)[:, None] / 8)
    np.testing.assert_array_equal(value_head["bias"], [0.25])
    hf.save_pretrained(tmp_path / "ours", loaded.config, loaded.params)  # under the names of today
    model.save_pretrained(tmp_path / "theirs")
    assert_equal_tensors(tmp_path / "ours", tmp_path / "theirs")


def test_load_model_ignores_constants_of_older_checkpoints_and_runs_no_code_of_the_folder(saved, params):
    attention = "gpt_neox.layers.0.attention"
    constants = {
        f"{attention}.bias": np.ones((1, 1, 4, 4), np.uint8),
        f"{attention}.masked_bias": np.array(-1e9, np.float32),
        f"{attention}.rotary_emb.inv_freq": np.ones(1, np.float32),
    }
    edit_tensors(saved / WEIGHTS, constants)
    trace = saved.parent / "trace"
    (saved / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Model: pass\nclass Config: pass\n")
    edit_config(saved, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    loaded = hf.load_model(saved)
    assert_equal_trees(loaded.params, params)
    assert loaded.unused == ()
    assert "auto_map" not in hf.config_to_hf(loaded.config, "lm")
    assert not trace.exists()


def test_a_tied_head_in_the_folder_must_be_the_embedding(tmp_path):
    config = dataclasses.replace(CONFIG, tie_word_embeddings=True)
    params = random_params(config)
    hf.save_pretrained(tmp_path / "model", config, params)
    embedding = np.asarray(params["trunk"]["embed_in"]["embedding"])
    edit_tensors(tmp_path / "model" / WEIGHTS, {"embed_out.weight": embedding})
    loaded = hf.load_model(tmp_path / "model")
    assert_equal_trees(loaded.params, params)
    assert loaded.unused == ()
    other = embedding.copy()
    other[3, 1] += 1
    for head in (other, embedding[:, :-1]):
        edit_tensors(tmp_path / "model" / WEIGHTS, {"embed_out.weight": head})
        named = "embed_out.weight: .*gpt_neox.embed_in.weight.*tie_word_embeddings"
        refused(named, hf.load_model, tmp_path / "model")


@pytest.mark.parametrize(("family", "unused"), [("gpt_neox", ("embed_out.weight",)), ("gpt2", ())])
def test_load_model_makes_a_value_model_of_a_language_model(family, unused, tmp_path):
    params = random_params(CONFIGS[family])
    hf.save_pretrained(tmp_path / "lm", CONFIGS[family], params)
    value = hf.load_model(tmp_path / "lm", head="score")
    assert (value.config, value.fresh, value.unused) == (CONFIGS[family], ("score.weight",), unused)
    assert_equal_trees(value.params, {"trunk": params["trunk"]})
    score = {"kernel": jnp.ones((32, 1))}
    hf.save_pretrained(tmp_path / "value", value.config, value.params | {"score": score})
    raw = read(tmp_path / "value")
    assert raw["architectures"] == [FAMILIES[family].architectures["score"]]
    assert raw["id2label"] == {"0": "LABEL_0"}
    again = hf.load_model(tmp_path / "value")
    assert_equal_trees(again.params, value.params | {"score": score})
    assert (again.fresh, again.unused) == ((), ())
    trunk = hf.load_model(tmp_path / "value", head=None)
    assert (set(trunk.params), trunk.unused) == ({"trunk"}, ("score.weight",))


def test_a_tied_trunk_is_a_language_model_where_it_is_asked_for(tmp_path):
    torch_folder(tmp_path / "trunk", "gpt2", None)
    for head, architecture in ((None, "GPT2Model"), ("lm", "GPT2LMHeadModel")):
        loaded = hf.load_model(tmp_path / "trunk", head=head)
        assert loaded.unused == ()
        hf.save_pretrained(tmp_path / "ours", loaded.config, loaded.params)
        assert read(tmp_path / "ours")["architectures"] == [architecture]
        assert ("transformer.wte.weight" in load_file(tmp_path / "ours" / WEIGHTS)) == (head == "lm")
        assert hf.read_config(tmp_path / "ours")[1] == head
        assert_equal_trees(hf.load_model(tmp_path / "ours").params, loaded.params)
    hf.save_pretrained(tmp_path / "untied", CONFIG, {"trunk": random_params(CONFIG, None)["trunk"]})
    refused(r"embed_out.weight: .*\(61, 32\)", hf.load_model, tmp_path / "untied", head="lm")


def test_a_reward_model_keeps_its_bias(tmp_path):
    torch_folder(tmp_path / "theirs", head="score")
    bias = np.array([0.75], np.float32)
    edit_tensors(tmp_path / "theirs" / WEIGHTS, {"score.bias": bias})
    loaded = hf.load_model(tmp_path / "theirs")
    np.testing.assert_array_equal(loaded.params["score"]["bias"], bias)
    hf.save_pretrained(tmp_path / "ours", loaded.config, loaded.params)
    assert_equal_tensors(tmp_path / "theirs", tmp_path / "ours")
    edit_config(tmp_path / "ours", tie_word_embeddings=True)  # else there would be no head for a language model
    assert hf.load_model(tmp_path / "ours", head="lm").unused == ("score.bias", "score.weight")


def test_describe_says_what_was_loaded_fresh_and_unused(saved, params):
    lm, value = (hf.load_model(saved, head=head) for head in ("saved", "score"))
    trunk = sum(leaf.size for leaf in jax.tree.leaves(params["trunk"]))
    for loaded, shown in (
        (lm, [str(saved), "28 tensors", f"{trunk + 61 * 32:,}"]),
        (value, ["27 tensors", f"{trunk:,}", "score.weight", "embed_out.weight"]),
        (value._replace(unused=tuple("abcdefg")), ["score.weight", "a, b, c, d, e and 2 more"]),
        (hf.load_model(saved, shapes_only=True), [f"{trunk + 61 * 32:,}"]),
    ):
        line = loaded.describe()
        assert all(each in line for each in shown) and "\n" not in line


def split_along(axis):
    """A placement that splits matrices over all devices along an axis; vectors are copied."""
    mesh = Mesh(np.asarray(jax.devices()), ("parts",))

    def placement(path, shape):
        assert isinstance(path, tuple) and path[-1] in ("kernel", "bias", "embedding", "scale")
        if len(shape) == 1 or shape[axis] % mesh.size:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, "parts"))

    return placement


@pytest.mark.parametrize(
    ("family", "file", "axis"),
    [("gpt_neox", "safetensors", 0), ("gpt_neox", "bin", 1), ("gpt2", "safetensors", 1), ("gpt2", "bin", 0)],
)
def test_load_model_reads_for_every_device_its_own_part(family, file, axis, tmp_path, monkeypatch):
    assert len(jax.devices()) == 4
    config = dataclasses.replace(CONFIGS[family], vocab_size=64, num_hidden_layers=1)
    params = random_params(config)
    hf.save_pretrained(tmp_path, config, params)
    if file == "bin":
        to_bin(tmp_path)
    parts = {}

    def recorded(name, tensor):
        def read(index):
            part = tensor.read(index)
            parts.setdefault(name, []).append(part.size / np.prod(tensor.shape))
            return part

        return dataclasses.replace(tensor, read=read)

    open_tensors = hf.folders.open_tensors
    monkeypatch.setattr(
        hf.folders,
        "open_tensors",
        lambda *args: {name: recorded(name, tensor) for name, tensor in open_tensors(*args).items()},
    )
    loaded = hf.load_model(tmp_path, placement=split_along(axis)).params
    assert_equal_trees(loaded, params)
    split = [leaf for leaf in jax.tree.leaves(loaded) if leaf.ndim == 2]
    assert len(split) >= 6
    for leaf, whole in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert len(leaf.addressable_shards) == 4
        for shard in leaf.addressable_shards:
            assert shard.data.size * (4 if leaf.ndim == 2 else 1) == leaf.size
            np.testing.assert_array_equal(shard.data, whole[shard.index])
    for name, sizes in parts.items():
        matrix = name.removesuffix(".weight") != name and not any(norm in name for norm in ("norm", "ln_"))
        assert sizes == ([0.25] * 4 if matrix else [1.0]), name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(saved, params, value):
    weights = load_file(saved / WEIGHTS)[QKV]
    weights[3, 5] = value
    edit_tensors(saved / WEIGHTS, {QKV: weights})
    refused(f"{QKV}: ", hf.load_model, saved)
    refused(f"{QKV}: ", hf.load_model, saved, placement=split_along(0))
    assert hf.load_model(saved, shapes_only=True).params.keys() == params.keys()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({QKV: None}, rf"{QKV}: .*\(96, 32\)"),
        ({QKV: np.zeros((32, 96), np.float32)}, rf"{QKV}: .*\(96, 32\).*\(32, 96\)"),
        ({"extra": np.zeros(3, np.float32)}, r"extra: .*\(3,\)"),
        ({QKV: None, "embed_out.weight": None}, f"embed_out.weight: .*; {QKV}: "),
        ({QKV: np.zeros((96, 32), "int32")}, f"{QKV}: .*I32"),
    ],
)
def test_load_model_names_tensors_that_do_not_fit_also_in_a_dry_run(saved, changes, named):
    edit_tensors(saved / WEIGHTS, changes)
    for shapes_only in (False, True):
        refused(named, hf.load_model, saved, shapes_only=shapes_only)
    edit_config(saved, num_hidden_layers=1)  # tensors of another model, of which the first are named
    refused(r"layers.1.attention.dense.bias: .*\d more$", hf.load_model, saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["GPTNeoXForQuestionAnswering"]},
        {"architectures": "REMOVE"},
        {"architectures": "GPTNeoXForCausalLM"},
        {"hidden_size": "REMOVE"},
    ],
)
def test_load_model_names_the_key_of_the_file(saved, changes):
    edit_config(saved, **changes)
    refused(f"^{saved}/config.json: {next(iter(changes))}: ", hf.load_model, saved)


def test_load_model_names_the_file_that_is_missing_or_damaged(saved):
    refused("nowhere", hf.load_model, saved / "nowhere")
    (saved / WEIGHTS).write_text("junk")
    refused(f"^{saved}: {WEIGHTS}: ", hf.load_model, saved)
    (saved / WEIGHTS).unlink()
    refused(f"^{saved}: .*{WEIGHTS}, pytorch_model.bin", hf.load_model, saved)
    assert hf.load_model(saved, shapes_only=True).config == CONFIG  # of which a folder without weights has all
    (saved / "config.json").write_text("[]")
    refused(f"^{saved}/config.json: ", hf.load_model, saved)
    (saved / "config.json").unlink()
    refused(f"^{saved}/config.json: ", hf.load_model, saved)


def test_save_pretrained_replaces_an_earlier_model_and_nothing_else(saved, params, tmp_path):
    (saved / f"{WEIGHTS}.index.json").write_text("{}")
    reward = random_params(CONFIG, "score", seed=1)
    hf.save_pretrained(saved, CONFIG, reward)
    assert_equal_trees(hf.load_pretrained(saved)[1], reward)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", WEIGHTS]
    assert [path.name for path in saved.parent.iterdir()] == ["model"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for place in ("mine", "mine/notes.txt"):
        refused(f"^{tmp_path}/{place}: ", hf.save_pretrained, tmp_path / place, CONFIG, params)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_save_pretrained_refuses_parameters_that_do_not_fit(params, tmp_path):
    for config, given, named in (
        (CONFIG, params | {"value_head": {"kernel": jnp.ones((32, 1))}}, "lm_head, trunk, value_head"),
        (dataclasses.replace(CONFIG, num_hidden_layers=1), params, "trunk/layers/1/attention/dense/bias"),
        (dataclasses.replace(CONFIG, intermediate_size=40), params, r"dense_4h_to_h.weight: .*\(32, 40\).*\(32, 48\)"),
        (GPT2, {"trunk": params["trunk"]}, "trunk/embed_positions"),
    ):
        refused(named, hf.save_pretrained, tmp_path / "model", config, given)
    assert not list(tmp_path.iterdir())


def test_load_policy_names_what_does_not_fit(params, tmp_path):
    folder, ended = tmp_path / "model", {"eos_token": "</s>"}
    for given, tokenizer, named in (
        (params, word_tokenizer(size=62, **ended), "vocab_size=61.*62"),
        (params, word_tokenizer(size=50, last=61, **ended), "vocab_size=61.*62"),
        (params, word_tokenizer(), "eos_token"),
        (random_params(CONFIG, "score"), word_tokenizer(**ended), "GPTNeoXForCausalLM.*lm_head"),
    ):
        hf.save_pretrained(folder, CONFIG, given, tokenizer)
        refused(f"^{folder}: .*{named}", hf.load_policy, folder)


def test_load_value_head_reads_what_save_value_head_wrote(saved, tmp_path):
    head = {"kernel": jnp.arange(32.0)[:, None], "bias": jnp.array([2.0])}
    folder = tmp_path / "head"
    hf.save_value_head(folder, head, card="# A head\n")
    assert_equal_trees(hf.load_value_head(folder, CONFIG), head)
    tensors = load_file(folder / "value_head.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == {"v_head.summary.weight": (1, 32), "v_head.summary.bias": (1,)}  # TRL's
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "value_head.safetensors"]
    other = jax.tree.map(lambda x: x + 1, head)
    hf.save_value_head(folder, other)
    assert_equal_trees(hf.load_value_head(folder, CONFIG), other)
    for kernel, named in ((jnp.zeros((32, 1), jnp.int8), "I8"), (jnp.zeros((16, 1)), r"\(1, 32\).*\(1, 16\)")):
        hf.save_value_head(folder, {"kernel": kernel, "bias": jnp.zeros(1)})
        refused(f"^{folder}: v_head.summary.weight: .*{named}", hf.load_value_head, folder, CONFIG)
    refused(rf"^{saved}: v_head.summary.weight: .*\(1, 32\)", hf.load_value_head, saved, CONFIG)
    refused(f"^{saved}: .*value_head.safetensors", hf.save_value_head, saved, head)


def test_find_model_gives_shipped_models_and_local_folders(tmp_path, monkeypatch):
    here = tmp_path / "here"
    for name in ("models/mine", "mine", "blocksworld-sft"):
        (here / name).mkdir(parents=True)
    monkeypatch.chdir(here)
    assert hf.find_model("blocksworld-sft") == hf.ASSETS / "blocksworld-sft"
    assert hf.find_model("./blocksworld-sft") == Path("blocksworld-sft")
    hf.load_policy("blocksworld-sft")
    for name in (".", "..", "models/mine", "mine"):
        assert hf.find_model(name).resolve() == hf.find_model(str(here / name)).resolve() == (here / name).resolve()


def test_find_model_asks_the_hub_for_no_path_and_names_all_it_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
        for name in ("/no/such/folder", "./gone", "a/b/c", "what is this?", "runs/gone/"):
            refused("config.json", hf.find_model, name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    shipped = "blocksworld-sft, planning-multi-sft"
    for name in ("no-such-user/no-such-model", "no-such-model", "no-such-user/no-such-model@main"):
        refused(f"^{name.partition('@')[0]}: .*{shipped}.*: LocalEntryNotFoundError: ", hf.find_model, name)

    def refuse(*_, **__):
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    refused("^user/name: .*ConnectionError: no route to host", hf.find_model, "user/name")


@pytest.mark.parametrize(
    ("files", "asks_for_bin"),
    [
        ([WEIGHTS], False),
        (["value_head.safetensors"], True),
    ],
)
def test_find_model_downloads_from_the_hub(files, asks_for_bin, tmp_path, monkeypatch):
    calls = []

    def download(repo, *, revision, allow_patterns):
        calls.append((repo, revision, allow_patterns))
        for file in files:
            (tmp_path / file).write_text("")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hf.find_model("user/name@refs/pr-1") == tmp_path
    assert [call[:2] for call in calls] == [("user/name", "refs/pr-1")] * (3 if asks_for_bin else 2)
    small, weights = calls[0][2], calls[1][2]
    assert {"*.json", "*.jinja"} <= set(small) and {"model*.safetensors", "value_head.safetensors"} <= set(weights)
    assert not any("bin" in pattern or "py" in pattern or pattern == "*" for pattern in [*small, *weights])
    assert not any("safetensors" in pattern for pattern in small)
    assert [call[2] for call in calls[2:]] == [["pytorch_model*.bin"]] * asks_for_bin
    calls.clear()
    hf.find_model("name", weights=False)
    assert calls == [("name", None, small)]
    calls.clear()
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_moe"}')  # of another family: no weights
    refused("^user/name: config.json: model_type: .*qwen2_moe", hf.find_model, "user/name")
    assert calls == [("user/name", None, small)]


def test_import_needs_neither_torch_nor_transformers():
    code = "import sys, jaxppo.hf; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
