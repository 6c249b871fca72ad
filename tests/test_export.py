"""Checkpoints come out as folders that transformers and PEFT read, and that say where they come from.

The base is as people have them: its vocabulary is padded beyond the tokenizer, and texts have several ends.
"""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load, load_file, save_file

from jaxppo import data, hf, models, train
from jaxppo.config import ExportConfig, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ModelError
from jaxppo.export import export
from jaxppo.nn import lora
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.jsonl import read_metrics
from jaxppo.sft import SFTConfig, sft
from tests import one_layer
from tests.commands import comparable, refusal_of, snapshot
from tests.small_runs import cut_back

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SECRET = "hf_" + "a1B2c3D4" * 4
SMALL = ["--preset", "tiny", "--total_episodes", "32", "--sizes", "test=4:4", "test_longer=5:4", "--quiet"]
SMALL += ["--response_length", "16"]  # so short that all sequences have one length, for which programs are compiled
TOKENS, ROWS = 32, 40
"""Of the tokenizer, and of the embeddings."""
ENDS = [1, 5]


def run_train(folder, *args):
    argv = [*SMALL, "--save_steps", "1", "--output_dir", str(folder), *map(str, args)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *argv, "--hub_token", SECRET])
        train.train(parse_cli(TrainConfig, "train", argv))
    return folder


def pad_vocabulary(folder):
    """Give a model eight more rows, of the largest logits whatever was said before."""
    tensors = load_file(folder / "model.safetensors")
    embedding, head = tensors["gpt_neox.embed_in.weight"], tensors["embed_out.weight"]
    # Of each two rows one has a large logit: hidden states are never orthogonal to their difference.
    far = 50 * np.concatenate([head[:4], -head[:4]])
    tensors["gpt_neox.embed_in.weight"] = np.concatenate([embedding, embedding[:8]])
    tensors["embed_out.weight"] = np.concatenate([head, far])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The model in a folder of its own, with settings of which one must not come out again."""
    folder = tmp_path_factory.mktemp("base") / "model"
    one_layer.write(folder)
    pad_vocabulary(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw |= {"vocab_size": ROWS, "eos_token_id": ENDS, "hub_token": SECRET, "classifier_dropout": 0.1}
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 77, "eos_token_id": [5, 1]}))
    return folder


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """A run with LoRA and a value model of its own."""
    folder = tmp_path_factory.mktemp("runs") / "adapted"
    return run_train(folder, "--sft_model_path", base, "--use_peft", "--lora_r", 4, "--learning_rate", "1e-2")


@pytest.fixture(scope="module")
def shared(base, tmp_path_factory):
    """A run of whole models with a value head on the policy's trunk."""
    folder = tmp_path_factory.mktemp("runs") / "shared"
    flags = ["--value_model", "shared", "--kl_estimator", "full", "--missing_eos_penalty", "1.0"]
    return run_train(folder, "--sft_model_path", base, *flags, "--num_sample_generations", "2")


def run_export(run, folder, *args):
    argv = ["--run_dir", str(run), "--output_dir", str(folder), "--quiet", *map(str, args)]
    return export(parse_cli(ExportConfig, "export", argv))


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def models_in(folder):
    """Files and their contents; of safetensors the tensors, as the order of their metadata is left to chance."""
    return {
        name: {key: tensor.tobytes() for key, tensor in load(content).items()} if "safetensors" in name else content
        for name, content in contents(folder).items()
    }


def saved_params(run, step=None):
    return Checkpoints(run / "checkpoints", keep=9).restore_params(step, pytest.fail)[0]


def test_export_in_another_dtype_and_in_shards_loads_in_transformers(adapted, tmp_path):
    folder = run_export(adapted, tmp_path / "half", "--dtype", "bfloat16", "--max_shard_size", "100KB")
    assert len(list((folder / "policy").glob("model-*.safetensors"))) > 2
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder / "policy", output_loading_info=True)
    assert model.dtype == torch.bfloat16 and not info["missing_keys"] and not info["unexpected_keys"]
    whole = transformers.AutoModelForCausalLM.from_pretrained(adapted / "policy").state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, whole[name].to(torch.bfloat16), rtol=0, atol=0)


def test_adapters_of_policy_and_value_compute_in_peft_what_their_merged_models_do(adapted, base):
    ids = np.random.default_rng(0).integers(0, 20, (3, 11))
    with torch.no_grad():
        merged = transformers.AutoModelForCausalLM.from_pretrained(adapted / "policy")(torch.tensor(ids)).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained(base)
        before = plain(torch.tensor(ids)).logits
        model = peft.PeftModel.from_pretrained(plain, adapted / "adapters" / "policy").eval()
        with_adapter = model(torch.tensor(ids)).logits
        with model.disable_adapter():
            torch.testing.assert_close(model(torch.tensor(ids)).logits, before, rtol=0, atol=0)
    config, whole = hf.load_pretrained(base)
    adapter = saved_params(adapted)["policy"]
    ours = models.apply(config, lora.attach(whole, adapter, 32 / 4), jnp.asarray(ids)).logits[..., :TOKENS]
    for theirs in (merged, with_adapter):
        np.testing.assert_allclose(ours, theirs.numpy()[..., :TOKENS], rtol=0, atol=1e-4)
    assert np.abs(ours - before.numpy()[..., :TOKENS]).max() > 1e-2
    ids = torch.tensor(np.random.default_rng(0).integers(2, 20, (2, 9)))
    score = transformers.AutoModelForSequenceClassification
    merged, info = score.from_pretrained(adapted / "value", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    plain = score.from_pretrained(base, num_labels=1)
    model = peft.PeftModel.from_pretrained(plain, adapted / "adapters" / "value").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, merged.eval()(ids).logits, rtol=0, atol=1e-4)
        assert merged(ids).logits.abs().max() > 1e-3


def test_what_the_base_said_is_kept_and_cards_name_it_the_licences_and_the_command(adapted, base):
    raw = json.loads((adapted / "policy" / "config.json").read_text())
    assert raw["classifier_dropout"] == 0.1 and raw["eos_token_id"] == ENDS
    generation = json.loads((adapted / "policy" / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["max_new_tokens"]) == ([5, 1], 77)
    assert hf.load_policy(adapted / "policy").config == hf.load_policy(base).config
    for folder in (adapted / "policy", adapted / "value", adapted / "adapters" / "policy"):
        card = (folder / "README.md").read_text()
        assert str(base) in card
        assert "python -m jaxppo.train" in card and "--use_peft" in card
        assert "license: mit" in card
        assert "lora_r: 4" in card
    assert "apache-2.0" in (adapted / "policy" / "README.md").read_text()  # of the generated problems


def test_a_run_samples_none_of_the_padded_rows_and_none_of_its_files_holds_a_secret(adapted):
    samples = read_metrics(adapted / "samples.jsonl")
    assert len(samples) == 32
    padded = {f"<{token}>" for token in range(TOKENS, ROWS)}
    assert not any(padded & set(sample["completion"].split()) for sample in samples)
    first = comparable(adapted)[0]
    assert abs(first["val/ratio_first"] - 1.0) < 1e-5 and abs(first["objective/kl"]) < 1e-4
    files = contents(adapted)
    assert any(file.startswith("checkpoints/") for file in files)
    assert [file for file, content in files.items() if SECRET.encode() in content] == []
    assert b"--hub_token" in files["config.yaml"]  # the command stands in it, its secret does not


@pytest.mark.full
def test_a_run_leaves_the_padded_rows_as_they_are_and_an_earlier_step_is_exported(base, shared, tmp_path):
    first = comparable(shared)[0]
    assert abs(first["val/ratio_first"] - 1.0) < 1e-5 and abs(first["objective/kl"]) < 1e-4
    before, after = (load_file(folder / "model.safetensors") for folder in (base, shared / "policy"))
    for name in ("embed_out.weight", "gpt_neox.embed_in.weight"):
        np.testing.assert_array_equal(after[name][TOKENS:], before[name][TOKENS:])
        assert np.any(after[name][:TOKENS] != before[name][:TOKENS])
    # An earlier step comes out with its weights, and says so.
    folder = run_export(shared, tmp_path / "first", "--step", 1)
    _, params = hf.load_pretrained(folder / "policy")
    jax.tree.map(np.testing.assert_array_equal, params, saved_params(shared, 1)["policy"])
    last = hf.load_pretrained(shared / "policy")[1]
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), params, last)))
    card = (folder / "policy" / "README.md").read_text()
    assert "after update 1" in card and "after update 2" not in card
    assert "| - |" in card and "| - |" not in (shared / "policy" / "README.md").read_text()  # measured was the last


def test_export_of_adapters_refuses_a_base_that_is_gone_or_has_changed(adapted, base, tmp_path):
    kept = (base / "model.safetensors").read_bytes()
    config, params = hf.load_pretrained(base)
    try:
        hf.save_pretrained(tmp_path / "other", config, jax.tree.map(lambda x: x + 0.01, params))
        shutil.copy(tmp_path / "other" / "model.safetensors", base / "model.safetensors")
        with pytest.raises(ModelError, match=str(base)):
            run_export(adapted, tmp_path / "out")
        (base / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            run_export(adapted, tmp_path / "out")
    finally:
        (base / "model.safetensors").write_bytes(kept)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--run_dir", "RUN", "--step", "7"], "step"),
        (["--run_dir", "RUN", "--max_shard_size", "5GiB"], "max_shard_size"),
        (["--run_dir", "RUN", "--output_dir", "OCCUPIED"], "occupied/policy"),
    ],
)
def test_export_of_bad_input_is_one_line(args, names, adapted, tmp_path, capsys):
    (tmp_path / "occupied" / "policy").mkdir(parents=True)
    (tmp_path / "occupied" / "policy" / "mine.txt").write_text("mine")
    places = {"RUN": str(adapted), "OCCUPIED": str(tmp_path / "occupied")}
    argv = [places.get(arg, arg) for arg in args]
    assert names in refusal_of(lambda: export(parse_cli(ExportConfig, "export", argv)), capsys)


@pytest.mark.full
def test_sft_learns_and_its_checkpoints_are_exported_too(tmp_path):
    argv = ["--sizes", "train=3:50", "test=4:4", "test_longer=5:4", "--batch_size", "16"]
    argv += ["--hidden_size", "16", "--num_hidden_layers", "1", "--total_episodes", "480", "--save_steps", "15"]
    argv += ["--warmup_steps", "3", "--learning_rate", "1e-2", "--quiet", "--output_dir", str(tmp_path / "sft")]
    run = sft(parse_cli(SFTConfig, "sft", argv))
    losses = [record["loss"] for record in read_metrics(run / "metrics.jsonl")]
    assert len(losses) == 30 and losses[-1] < 0.8 * losses[0]
    before = snapshot(run)
    sft(parse_cli(SFTConfig, "sft", ["--output_dir", str(run), "--resume"]))  # finished: nothing is left to do
    assert snapshot(run) == before
    folder = run_export(run, tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"policy"}
    ours, written = (load_file(where / "policy" / "model.safetensors") for where in (folder, run))
    assert ours.keys() == written.keys()
    _, params = hf.load_pretrained(folder / "policy")
    jax.tree.map(np.testing.assert_array_equal, params, saved_params(run)["policy"])
    early = run_export(run, tmp_path / "early", "--step", 15)
    assert hf.load_policy(early / "policy").tokenizer.get_vocab() == data.word_tokenizer().get_vocab()
    cards = [(where / "policy" / "README.md").read_text() for where in (folder, early)]
    results = [card.split("## Results")[1].split("\n## ")[0] for card in cards]
    # Those of the last step are not of an early one.
    assert ["test_longer" in part for part in results] == [True, False]


@pytest.mark.full
@pytest.mark.parametrize("name", ["adapted", "shared"])
def test_export_of_the_last_checkpoint_and_a_resumed_run_repeat_the_folders_of_the_run(name, request, tmp_path):
    whole = request.getfixturevalue(name)
    exported = run_export(whole, tmp_path / "out")
    kinds = {"policy", "value"} | ({"adapters"} if name == "adapted" else set())
    assert {path.name for path in exported.iterdir()} == kinds
    for kind in kinds:
        assert models_in(exported / kind) == models_in(whole / kind)
    folder = shutil.copytree(whole, tmp_path / "resumed")
    weights = sorted(path.relative_to(whole) for path in whole.glob("[!c]*/**/*.safetensors"))
    assert len(weights) == (4 if name == "adapted" else 2)
    for kind in {path.parts[0] for path in weights}:
        shutil.rmtree(folder / kind)
    train.train(parse_cli(TrainConfig, "train", ["--output_dir", str(cut_back(folder, 1)), "--resume"]))
    assert len(comparable(folder)) == 2 and comparable(folder) == comparable(whole)
    assert json.loads((folder / "eval.json").read_text()) == json.loads((whole / "eval.json").read_text())
    for path in weights:
        ours, theirs = load_file(folder / path), load_file(whole / path)
        assert {key: x.tobytes() for key, x in ours.items()} == {key: x.tobytes() for key, x in theirs.items()}
