"""Checkpoints come out as folders that transformers and PEFT read, and that say where they come from."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load, load_file

from jaxppo import data, hf, models, train
from jaxppo.config import ExportConfig, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ModelError
from jaxppo.export import export
from jaxppo.nn import lora
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.run import cli
from jaxppo.run.checkpoints import Checkpoints
from jaxppo.run.folder import Run
from jaxppo.sft import SFTConfig, sft
from tests import one_layer
from tests.commands import comparable

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SECRET = "hf_" + "a1B2c3D4" * 4
SMALL = ["--preset", "tiny", "--total_episodes", "32", "--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--quiet"]
SMALL += ["--response_length", "16"]  # so short that all sequences have one length, for which programs are compiled


def run_train(folder, *args):
    argv = [*SMALL, "--save_steps", "1", "--output_dir", str(folder), *map(str, args)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *argv, "--hub_token", SECRET])
        train.train(parse_cli(TrainConfig, "train", argv))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The model in a folder of its own, with settings that must not come out again."""
    folder = tmp_path_factory.mktemp("base") / "model"
    one_layer.write(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"hub_token": SECRET, "classifier_dropout": 0.1}))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 77}))
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
    return run_train(folder, "--sft_model_path", base, "--value_model", "shared")


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


@pytest.mark.full
@pytest.mark.parametrize("name", ["adapted", "shared"])
def test_export_of_the_last_checkpoint_repeats_the_folders_of_the_run(name, request, tmp_path):
    run = request.getfixturevalue(name)
    folder = run_export(run, tmp_path / "out")
    kinds = {"policy", "value"} | ({"adapters"} if name == "adapted" else set())
    assert {path.name for path in folder.iterdir()} == kinds
    for kind in kinds:
        assert models_in(folder / kind) == models_in(run / kind)


@pytest.mark.full
def test_export_of_an_earlier_step_has_its_weights_and_says_so(shared, tmp_path):
    folder = run_export(shared, tmp_path / "first", "--step", 1)
    _, params = hf.load_pretrained(folder / "policy")
    jax.tree.map(np.testing.assert_array_equal, params, saved_params(shared, 1)["policy"])
    last = hf.load_pretrained(shared / "policy")[1]
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), params, last)))
    card = (folder / "policy" / "README.md").read_text()
    assert "after update 1" in card and "after update 2" not in card
    assert "| - |" in card and "| - |" not in (shared / "policy" / "README.md").read_text()  # measured was the last


def test_export_in_another_dtype_and_in_shards_loads_in_transformers(shared, tmp_path):
    folder = run_export(shared, tmp_path / "half", "--dtype", "bfloat16", "--max_shard_size", "100KB")
    assert len(list((folder / "policy").glob("model-*.safetensors"))) > 2
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder / "policy", output_loading_info=True)
    assert model.dtype == torch.bfloat16 and not info["missing_keys"] and not info["unexpected_keys"]
    ours = saved_params(shared)["policy"]["trunk"]["embed_in"]["embedding"]
    expected = np.asarray(jnp.asarray(ours).astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(model.gpt_neox.embed_in.weight.detach().float().numpy(), expected)


def test_the_shared_value_head_is_saved_and_is_where_another_run_starts(shared, tmp_path, capsys):
    params = saved_params(shared)
    tensors = load_file(shared / "value" / "value_head.safetensors")
    np.testing.assert_array_equal(tensors["v_head.summary.weight"], params["value"]["score"]["kernel"].T)
    np.testing.assert_array_equal(tensors["v_head.summary.bias"], params["value"]["score"]["bias"])
    assert tensors["v_head.summary.weight"].any()
    argv = ["--preset", "tiny", "--sft_model_path", shared / "policy", "--value_model", "shared"]
    argv += ["--value_model_path", shared / "value", "--dry_run", "--output_dir", tmp_path / "none"]
    config = parse_cli(TrainConfig, "train", list(map(str, argv)))
    _, start = train.set_up(Run(command="train", config=config, folder=tmp_path))
    jax.tree.map(np.testing.assert_array_equal, start.value["score"], params["value"]["score"])
    assert "value head from" in capsys.readouterr().out


def test_policy_of_adapters_is_merged_and_peft_computes_the_same_from_the_adapter(adapted, base):
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
    ours = models.apply(config, lora.attach(whole, adapter, 32 / 4), jnp.asarray(ids)).logits
    for theirs in (merged, with_adapter):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-4)
    assert np.abs(ours - before.numpy()).max() > 1e-2


def test_value_adapter_gives_the_scores_of_the_merged_value_model(adapted, base):
    ids = torch.tensor(np.random.default_rng(0).integers(2, 20, (2, 9)))
    score = transformers.AutoModelForSequenceClassification
    merged = score.from_pretrained(adapted / "value")
    plain = score.from_pretrained(base, num_labels=1)
    model = peft.PeftModel.from_pretrained(plain, adapted / "adapters" / "value").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, merged.eval()(ids).logits, rtol=0, atol=1e-4)
        assert merged(ids).logits.abs().max() > 1e-3


def test_cards_name_the_base_the_licences_and_the_command(adapted, base):
    for folder in (adapted / "policy", adapted / "value", adapted / "adapters" / "policy"):
        card = (folder / "README.md").read_text()
        assert str(base) in card
        assert "python -m jaxppo.train" in card and "--use_peft" in card
        assert "license: mit" in card
        assert "lora_r: 4" in card
    assert "apache-2.0" in (adapted / "policy" / "README.md").read_text()  # of the generated problems


def test_what_the_base_said_is_kept(adapted):
    raw = json.loads((adapted / "policy" / "config.json").read_text())
    assert raw["classifier_dropout"] == 0.1
    generation = json.loads((adapted / "policy" / "generation_config.json").read_text())
    _, _, tokenizer, _ = hf.load_policy(adapted / "policy")
    assert generation["max_new_tokens"] == 77 and generation["eos_token_id"] == tokenizer.eos_token_id


@pytest.mark.parametrize("name", ["adapted", "shared"])
def test_no_file_of_a_run_holds_a_secret(name, request):
    files = contents(request.getfixturevalue(name))
    assert any(file.startswith("checkpoints/") for file in files)
    assert [file for file, content in files.items() if SECRET.encode() in content] == []
    assert b"--hub_token" in files["config.yaml"]  # the command is there, its secret is not


def test_export_of_adapters_refuses_a_base_that_is_gone_or_has_changed(adapted, base, tmp_path):
    kept = (base / "model.safetensors").read_bytes()
    config, params = hf.load_pretrained(base)
    try:
        hf.save_pretrained(tmp_path / "other", config, jax.tree.map(lambda x: x + 0.01, params))
        shutil.copy(tmp_path / "other" / "model.safetensors", base / "model.safetensors")
        with pytest.raises(ModelError, match="expected the weights that the adapters were trained on, got others"):
            run_export(adapted, tmp_path / "out")
        (base / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            run_export(adapted, tmp_path / "out")
    finally:
        (base / "model.safetensors").write_bytes(kept)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "run_dir: expected a run folder with checkpoints, got None"),
        (["--run_dir", "nowhere"], "run_dir: expected a run folder with checkpoints, got nowhere"),
        (["--run_dir", "RUN", "--step", "7"], "step: expected one of"),
        (["--run_dir", "RUN", "--max_shard_size", "big"], "max_shard_size: expected a size such as 5GB"),
        (["--run_dir", "RUN", "--max_shard_size", "5GiB"], "max_shard_size: expected a size such as 5GB"),
        (["--run_dir", "RUN", "--output_dir", "OTHER"], "output_dir: expected no models of another export in"),
        (["--run_dir", "RUN", "--output_dir", "TAKEN"], "expected a new or empty folder or one with config.json"),
    ],
)
def test_export_of_bad_input_is_one_line(args, message, shared, tmp_path, capsys):
    (tmp_path / "taken" / "policy").mkdir(parents=True)
    (tmp_path / "taken" / "policy" / "mine.txt").write_text("mine")
    (tmp_path / "other" / "reward_model").mkdir(parents=True)
    names = {"RUN": str(shared), "TAKEN": str(tmp_path / "taken"), "OTHER": str(tmp_path / "other")}
    argv = [names.get(arg, arg) for arg in args]
    with pytest.raises(SystemExit) as stop:
        cli.main(lambda: export(parse_cli(ExportConfig, "export", argv)))
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.full
def test_sft_checkpoints_are_exported_too(tmp_path):
    argv = ["--train_sizes", "3:20", "--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--batch_size", "8"]
    argv += ["--hidden_size", "16", "--num_hidden_layers", "1", "--total_episodes", "32", "--save_steps", "2"]
    run = sft(parse_cli(SFTConfig, "sft", [*argv, "--quiet", "--output_dir", str(tmp_path / "sft")]))
    folder = run_export(run, tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"policy"}
    assert (
        load_file(folder / "policy" / "model.safetensors").keys()
        == load_file(run / "policy" / "model.safetensors").keys()
    )
    _, params = hf.load_pretrained(folder / "policy")
    jax.tree.map(np.testing.assert_array_equal, params, saved_params(run)["policy"])
    early = run_export(run, tmp_path / "early", "--step", 2)
    assert hf.load_policy(early / "policy").tokenizer.get_vocab() == data.word_tokenizer().get_vocab()
    cards = [(where / "policy" / "README.md").read_text() for where in (folder, early)]
    results = [card.split("## Results")[1].split("\n## ")[0] for card in cards]
    assert ["test_longer" in part for part in results] == [
        True,
        False,
    ]  # those of the last step are not of an early one


@pytest.mark.full
def test_a_resumed_run_of_adapters_equals_the_uninterrupted_one(adapted, tmp_path):
    folder = tmp_path / "resumed"
    shutil.copytree(adapted, folder)
    for name in ("checkpoints/2", "policy", "value", "adapters"):
        shutil.rmtree(folder / name)
    evals = json.loads((folder / "eval.json").read_text())
    (folder / "eval.json").write_text(json.dumps({name: evals[name] for name in ("headline_split", "before")}))
    train.train(parse_cli(TrainConfig, "train", ["--output_dir", str(folder), "--resume"]))
    assert len(comparable(folder)) == 2 and comparable(folder) == comparable(adapted)
    assert json.loads((folder / "eval.json").read_text()) == evals
    for name in ("policy/model", "adapters/policy/adapter_model", "adapters/value/adapter_model"):
        ours, theirs = (load_file(run / f"{name}.safetensors") for run in (folder, adapted))
        assert {key: x.tobytes() for key, x in ours.items()} == {key: x.tobytes() for key, x in theirs.items()}


def random_gpt2(folder, positions):
    tokenizer = data.word_tokenizer()
    config = GPT2Config(
        vocab_size=data.bucket(len(tokenizer)),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        eos_token_id=tokenizer.eos_token_id,
    )
    hf.save_pretrained(folder, config, models.init_params(config, jax.random.key(0)), tokenizer)
    return folder


@pytest.mark.full
def test_gpt2_trains_in_bfloat16_and_comes_out_as_gpt2(tmp_path):
    run = run_train(tmp_path / "run", "--sft_model_path", random_gpt2(tmp_path / "gpt2", 128), "--dtype", "bfloat16")
    assert abs(comparable(run)[0]["objective/kl"]) < 1e-6
    assert all(np.isfinite(record["loss/policy_avg"]) for record in comparable(run))
    for name, kind in (("policy", "AutoModelForCausalLM"), ("value", "AutoModelForSequenceClassification")):
        model, info = getattr(transformers, kind).from_pretrained(run / name, output_loading_info=True)
        assert model.config.model_type == "gpt2" and model.dtype == torch.float32
        assert not info["missing_keys"] and not info["unexpected_keys"]


@pytest.mark.full
def test_rows_longer_than_the_positions_of_gpt2_are_met_before_the_run(tmp_path):
    with pytest.raises(ModelError, match="longest prompt and response_length: expected at most 64 tokens"):
        model = random_gpt2(tmp_path / "gpt2", 64)
        run_train(tmp_path / "run", "--sft_model_path", model, "--response_length", 48)
    assert not (tmp_path / "run").exists()
