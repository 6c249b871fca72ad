"""Model folders against transformers itself: what it writes we read, what we write it reads, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxppo import hf, models
from jaxppo.errors import ModelError
from jaxppo.models import ModelConfig

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
CONFIG = ModelConfig(**SIZES, bos_token_id=0, eos_token_id=2, pad_token_id=1)
QKV = "gpt_neox.layers.1.attention.query_key_value.weight"


def assert_equal_trees(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def torch_folder(folder, class_name="GPTNeoXForCausalLM", dtype="float32", shard_size="1GB", **options):
    """Let transformers write a random model, large enough weights for bits to matter."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTNeoXConfig(**SIZES, num_labels=1, initializer_range=0.3, **options)
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


@pytest.fixture
def saved(tmp_path):
    """(folder, parameters) of a language model written by us."""
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, params)
    return tmp_path / "model", params


def edit_config(folder, **changes):
    file = folder / "config.json"
    raw = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in raw.items() if value != "REMOVE"}))


def edit_tensors(folder, **changes):
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


@pytest.mark.parametrize(
    ("class_name", "options"),
    [
        ("GPTNeoXForCausalLM", {}),
        ("GPTNeoXForCausalLM", {"tie_word_embeddings": True, "attention_bias": False}),
        ("GPTNeoXForSequenceClassification", {}),
        ("GPTNeoXModel", {}),
    ],
)
def test_round_trip_is_bit_equal(class_name, options, tmp_path):
    torch_folder(tmp_path / "theirs", class_name, **options)
    hf.save_pretrained(tmp_path / "ours", *hf.load_pretrained(tmp_path / "theirs"))
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert set(theirs) == set(ours)
    for name, tensor in theirs.items():
        assert (tensor.dtype, tensor.shape) == (ours[name].dtype, ours[name].shape)
        assert tensor.tobytes() == ours[name].tobytes(), name
    raw = json.loads((tmp_path / "theirs" / "config.json").read_text())
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written.items() <= raw.items()
    assert raw["architectures"] == [class_name]


@pytest.mark.parametrize(
    ("head", "class_name"), [("lm", "AutoModelForCausalLM"), ("score", "AutoModelForSequenceClassification")]
)
def test_transformers_loads_our_folder_and_computes_the_same(head, class_name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params = models.init_params(CONFIG, jax.random.key(0), head)
    params = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    hf.save_pretrained(tmp_path / "model", CONFIG, params)
    model, info = getattr(transformers, class_name).from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 24, 20)
    ids = generator.integers(2, CONFIG.vocab_size, (20, 24))
    mask = np.arange(24) < lengths[:, None]
    ids = np.where(mask, ids, CONFIG.pad_token_id)
    with torch.no_grad():
        expected = model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype(int))).logits.numpy()
    output = models.apply(CONFIG, params, jnp.asarray(ids), logits=head == "lm")
    if head == "lm":
        np.testing.assert_allclose(output.logits[mask], expected[mask], atol=1e-4, rtol=0)
    else:
        scores = models.scores(params, output.hidden)[np.arange(20), lengths - 1]
        np.testing.assert_allclose(scores, expected[:, 0], atol=1e-4, rtol=0)
    assert np.abs(expected).max() > 1


def test_load_pretrained_reads_shards(tmp_path):
    torch_folder(tmp_path / "one")
    torch_folder(tmp_path / "many", shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    (config, params), (sharded_config, sharded) = (hf.load_pretrained(tmp_path / name) for name in ("one", "many"))
    assert config == sharded_config
    assert_equal_trees(params, sharded)


def test_load_pretrained_names_a_missing_shard(tmp_path):
    torch_folder(tmp_path, shard_size="20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=f"{shard.name}: expected a readable safetensors file"):
        hf.load_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_load_pretrained_turns_half_precision_into_float32(dtype, tmp_path):
    model = torch_folder(tmp_path, dtype=dtype)
    _, params = hf.load_pretrained(tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    expected = model.gpt_neox.embed_in.weight.detach().float().numpy()
    np.testing.assert_array_equal(params["trunk"]["embed_in"]["embedding"], expected)


def test_load_pretrained_ignores_constants_of_older_checkpoints(saved):
    folder, params = saved
    edit_tensors(
        folder,
        **{
            "gpt_neox.layers.0.attention.bias": np.ones((1, 1, 4, 4), np.uint8),
            "gpt_neox.layers.0.attention.masked_bias": np.array(-1e9, np.float32),
            "gpt_neox.layers.1.attention.rotary_emb.inv_freq": np.ones(1, np.float32),
        },
    )
    assert_equal_trees(hf.load_pretrained(folder)[1], params)


def test_load_pretrained_ignores_a_repeated_tied_embedding(tmp_path):
    config = ModelConfig(**SIZES, tie_word_embeddings=True)
    params = models.init_params(config, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", config, params)
    embedding = np.asarray(params["trunk"]["embed_in"]["embedding"])
    edit_tensors(tmp_path / "model", **{"embed_out.weight": embedding})
    assert_equal_trees(hf.load_pretrained(tmp_path / "model")[1], params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({QKV: None}, rf"{QKV}: expected shape \(96, 32\), got no tensor"),
        ({QKV: np.zeros((32, 96), np.float32)}, rf"{QKV}: expected shape \(96, 32\), got \(32, 96\)"),
        ({"extra": np.zeros(3, np.float32)}, r"extra: expected no such tensor, got shape \(3,\)"),
        (
            {QKV: None, "embed_out.weight": None},
            rf"embed_out.weight: expected shape \(61, 32\), got no tensor; {QKV}: expected shape \(96, 32\), got no",
        ),
    ],
)
def test_load_pretrained_names_tensors_that_do_not_fit(saved, changes, message):
    folder, _ = saved
    edit_tensors(folder, **changes)
    with pytest.raises(ModelError, match=message):
        hf.load_pretrained(folder)


def test_load_pretrained_counts_the_problems_it_does_not_list(saved):
    folder, _ = saved
    edit_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"layers.1.attention.dense.bias: expected no such tensor.*; and 7 more$"):
        hf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type: expected one of gpt_neox, got 'llama'"),
        ({"hidden_size": "REMOVE"}, "hidden_size: expected an integer, got no such key"),
        ({"hidden_act": "softplus"}, "hidden_act: expected one of .*, got 'softplus'"),
        ({"architectures": ["GPTNeoXForQuestionAnswering"]}, "architectures: expected one of GPTNeoXForCausalLM, .*"),
        ({"architectures": "REMOVE"}, "architectures: expected one of .*, got None"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters.rope_type: .*, got 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type: .*, got 'dynamic'"),
        ({"rope_parameters": "default"}, "rope_parameters: expected an object, got 'default'"),
        ({"eos_token_id": [2, 3]}, r"eos_token_id: expected null or one integer .*, got \[2, 3\]"),
    ],
)
def test_load_pretrained_names_the_config_key(saved, changes, message):
    folder, _ = saved
    edit_config(folder, **changes)
    with pytest.raises(ModelError, match=f"config.json: {message}"):
        hf.load_pretrained(folder)


def test_load_pretrained_asks_for_one_label(tmp_path):
    hf.save_pretrained(tmp_path / "model", CONFIG, models.init_params(CONFIG, jax.random.key(0), "score"))
    edit_tensors(tmp_path / "model", **{"score.weight": np.zeros((2, 32), np.float32)})
    with pytest.raises(ModelError, match=r"score.weight: expected shape \(1, 32\), got \(2, 32\)"):
        hf.load_pretrained(tmp_path / "model")


def test_load_pretrained_names_the_missing_file(saved):
    folder, _ = saved
    with pytest.raises(ModelError, match=r"nowhere: expected a model folder with config.json, got no folder"):
        hf.load_pretrained(folder / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"{folder}: expected model.safetensors or .*index.json, got neither"):
        hf.load_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: expected a file of a Hugging Face model, got no file"):
        hf.load_pretrained(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "config.json: expected JSON"),
        ("config.json", "[]", "config.json: expected a JSON object, got list"),
        ("model.safetensors", "junk", "model.safetensors: expected a readable safetensors file"),
    ],
)
def test_load_pretrained_names_the_damaged_file(saved, file, content, message):
    folder, _ = saved
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        hf.load_pretrained(folder)


def test_config_from_hf_reads_old_rotary_keys():
    raw = {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0}
    config = hf.config_from_hf(raw)
    assert (config.rotary_pct, config.rope_theta) == (0.5, 500)
    new = hf.config_from_hf(raw | {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0}})
    assert (new.rotary_pct, new.rope_theta) == (1.0, 3.0)
    bare = hf.config_from_hf({"model_type": "gpt_neox", **SIZES})
    assert (bare.rotary_pct, bare.rope_theta) == (0.25, 10000.0)
    assert (bare.bos_token_id, bare.eos_token_id, bare.pad_token_id) == (0, 2, None)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_theta": 7.0},
        {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 3.0}, "rotary_pct": 0.5},
        {"rope_scaling": {"type": "default", "rope_theta": 3.0}},
    ],
)
def test_config_from_hf_reads_what_transformers_reads(raw):
    transformers = pytest.importorskip("transformers")
    raw = {"model_type": "gpt_neox", **SIZES, **raw}
    theirs = transformers.GPTNeoXConfig.from_dict(json.loads(json.dumps(raw)))
    assert hf.config_from_hf(raw) == hf.config_from_hf(theirs.to_dict())


@pytest.mark.parametrize("architecture", ["GPTNeoXForCausalLM", "GPTNeoXForSequenceClassification"])
def test_config_to_hf_loses_nothing(architecture):
    transformers = pytest.importorskip("transformers")
    config = ModelConfig(
        **SIZES,
        max_position_embeddings=77,
        rotary_pct=0.5,
        rope_theta=500.0,
        layer_norm_eps=1e-6,
        hidden_act="relu",
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=5,
        pad_token_id=4,
    )
    raw = hf.config_to_hf(config, architecture)
    assert hf.config_from_hf(raw) == config
    theirs = transformers.GPTNeoXConfig.from_dict(raw)
    assert hf.config_from_hf(theirs.to_dict()) == config
    assert theirs.num_labels == (1 if architecture == "GPTNeoXForSequenceClassification" else 2)


def test_save_pretrained_replaces_an_earlier_model(saved):
    folder, _ = saved
    (folder / "model.safetensors.index.json").write_text("{}")
    params = models.init_params(CONFIG, jax.random.key(1), head="score")
    hf.save_pretrained(folder, CONFIG, params)
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_writes_over_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    params = models.init_params(CONFIG, jax.random.key(0))
    with pytest.raises(ModelError, match=r"expected a new or empty folder or one with config.json, got other files"):
        hf.save_pretrained(tmp_path, CONFIG, params)
    with pytest.raises(ModelError, match=r"notes.txt: expected a folder, got a file"):
        hf.save_pretrained(tmp_path / "notes.txt", CONFIG, params)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_save_pretrained_that_fails_leaves_the_earlier_model(saved):
    class BrokenTokenizer:
        def save_pretrained(self, folder):
            assert (Path(folder) / "model.safetensors").is_file()
            raise OSError("disk full")

    folder, params = saved
    other = jax.tree.map(lambda x: x + 1, params)
    with pytest.raises(OSError, match="disk full"):
        hf.save_pretrained(folder, CONFIG, other, tokenizer=BrokenTokenizer())
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_puts_the_earlier_model_back(saved, monkeypatch):
    folder, params = saved
    rename = Path.rename

    def broken_rename(path, target):
        if path.name.endswith(".partial"):
            raise OSError("no such luck")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", broken_rename)
    with pytest.raises(OSError, match="no such luck"):
        hf.save_pretrained(folder, CONFIG, jax.tree.map(lambda x: x + 1, params))
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_clears_what_a_killed_process_left(saved):
    folder, params = saved
    for name in (".model.partial", ".model.replaced"):
        (folder.parent / name).mkdir()
        (folder.parent / name / "model.safetensors").write_text("half")
    hf.save_pretrained(folder, CONFIG, params)
    assert_equal_trees(hf.load_pretrained(folder)[1], params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_save_pretrained_refuses_parameters_that_do_not_fit(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    value_head = models.init_score_head(CONFIG, jax.random.key(1))
    smaller = ModelConfig(**(SIZES | {"num_hidden_layers": 1}))
    narrower = ModelConfig(**(SIZES | {"intermediate_size": 40}))
    with pytest.raises(ModelError, match=r"expected 'trunk' with 'lm_head', .* got lm_head, trunk, value_head"):
        hf.save_pretrained(tmp_path / "model", CONFIG, params | {"value_head": value_head})
    with pytest.raises(ModelError, match="params: missing or not of this config: trunk/layers/1/attention/dense/bias"):
        hf.save_pretrained(tmp_path / "model", smaller, params)
    with pytest.raises(ModelError, match=r"dense_4h_to_h.weight: expected shape \(32, 40\), got \(32, 48\)"):
        hf.save_pretrained(tmp_path / "model", narrower, params)
    assert not list(tmp_path.iterdir())


def test_save_pretrained_writes_the_generation_config(tmp_path):
    params = models.init_params(CONFIG, jax.random.key(0))
    written = {}
    for name, choice in {"plain": True, "more": {"max_new_tokens": 9, "eos_token_id": [2, 3]}, "none": False}.items():
        hf.save_pretrained(tmp_path / name, CONFIG, params, generation_config=choice)
        file = tmp_path / name / "generation_config.json"
        written[name] = json.loads(file.read_text()) if file.exists() else None
    tokens = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    assert written == {
        "plain": tokens,
        "more": tokens | {"max_new_tokens": 9, "eos_token_id": [2, 3]},
        "none": None,
    }


def test_load_tokenizer_reads_what_save_pretrained_wrote(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "put-down": 3, "b1": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>"
    )
    params = models.init_params(CONFIG, jax.random.key(0))
    hf.save_pretrained(tmp_path / "model", CONFIG, params, tokenizer=tokenizer)
    loaded = hf.load_tokenizer(tmp_path / "model")
    assert loaded("put-down b1").input_ids == [3, 4]
    assert (loaded.pad_token_id, loaded.eos_token_id) == (1, 2)


def test_load_tokenizer_names_the_folder_without_one(saved):
    pytest.importorskip("transformers")
    folder, _ = saved
    with pytest.raises(ModelError, match=rf"{folder}: expected a tokenizer \(tokenizer.json or .*\), got none"):
        hf.load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=rf"{folder}: expected a readable tokenizer, got: "):
        hf.load_tokenizer(folder)
    with pytest.raises(ModelError, match="nowhere: expected a model folder"):
        hf.load_tokenizer(folder / "nowhere")


def test_import_needs_neither_torch_nor_transformers():
    code = "import sys, jaxppo.hf; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
