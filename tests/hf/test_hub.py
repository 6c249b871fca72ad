"""Models pushed to a hub of the test's own, and pulled from there; what is refused, and how a push is repeated."""

import io
import shlex
from pathlib import Path

import jax
import pytest
from huggingface_hub import snapshot_download

from jaxppo import hf
from jaxppo.config import ExportConfig, HubConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import parse_cli, write_yaml
from jaxppo.errors import ConfigError, DataError, HubError
from jaxppo.export import export
from jaxppo.hf import hub as pushing
from jaxppo.parallel import processes
from jaxppo.run import cli
from jaxppo.run.console import Console
from jaxppo.run.folder import Run
from tests import one_layer
from tests.hub_server import TOKEN

SOME = {"policy/config.json": b"{}", "policy/model.safetensors": b"weights", "policy/README.md": b"# Mine\n"}


def written(folder, files=SOME):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def contents(folder, but=(".cache",)):
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    names = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: content for name, content in names.items() if not name.startswith(but)}


def run_of(folder, *flags, command=TrainConfig):
    config = parse_cli(command, command.__name__.removesuffix("Config").lower(), ["--output_dir", str(folder), *flags])
    return Run(command="train", config=config, folder=folder, console=Console(file=io.StringIO()))


def said(run):
    return run.console._rich.file.getvalue()


def test_pushed_models_come_back_as_they_were_and_can_be_loaded(hub, tmp_path):
    run = tmp_path / "run"
    one_layer.write(run / "policy")
    written(run, {"value/model.safetensors": b"value", "value/README.md": b"", "adapters/policy/a.json": b"[]"})
    written(run, {"checkpoints/1/x": b"no model", "metrics.jsonl": b""})
    assert pushing.push_models(run, "me/mine", private=False) == f"{hub.url}/me/mine"
    (changed,) = hub.repos["models/me/mine"].commits
    pulled = contents(snapshot_download("me/mine", local_dir=tmp_path / "pulled"))
    policy = contents(run / "policy")
    expected = policy | {f"value/{name}": data for name, data in contents(run / "value").items()}
    assert pulled == expected | {"adapters/policy/a.json": b"[]"}
    assert sorted(changed) == sorted(pulled) and len(hub.stored) == 2
    shapes = jax.tree.leaves(hf.load_policy("me/mine", shapes_only=True).params)
    assert shapes and all(isinstance(each, jax.ShapeDtypeStruct) for each in shapes)
    assert not (hf.find_model("me/mine", weights=False) / "model.safetensors").exists()
    found = hf.find_model("me/mine")
    assert (found / "model.safetensors").read_bytes() == policy["model.safetensors"]
    assert not (found / "value" / "model.safetensors").exists()
    hf.load_pretrained(found)


def test_a_second_push_takes_away_what_would_not_belong_to_it(hub, tmp_path):
    first = {"policy/model-00001-of-00002.safetensors": b"1", "policy/model.safetensors.index.json": b"{}"}
    pushing.push_models(written(tmp_path / "first", SOME | first | {"value/config.json": b"{}"}), "me/mine", False)
    repo = hub.repos["models/me/mine"]
    repo.files |= {"plot.png": b"png", "onnx/model.safetensors": b"theirs", "policy/model.safetensors": b"theirs"}
    repo.files["other.safetensors"] = b"theirs"
    pushing.push_models(written(tmp_path / "second"), "me/mine", False)
    left = {"plot.png", "onnx/model.safetensors", "policy/model.safetensors", "other.safetensors"}
    assert repo.files.keys() == left | {"config.json", "model.safetensors", "README.md"}
    assert len(repo.commits) == 2  # one for each push
    # A reward model lies at the top.
    run = written(tmp_path / "judge", {"reward_model/config.json": b"{}", "adapters/reward_model/a.json": b"[]"})
    pushing.push_models(run, "me/judge", False)
    files = hub.repos["models/me/judge"].files
    assert files == {"config.json": b"{}", "adapters/reward_model/a.json": b"[]"}
    with pytest.raises(DataError, match="policy/ or reward_model/"):
        pushing.push_models(run / "reward_model", "me/judge", False)


def test_private_makes_a_private_repository_and_refuses_one_that_all_can_see(hub, tmp_path, capsys):
    pushing.push_models(written(tmp_path), "me/secret", private=True)
    pushing.push_models(tmp_path, "me/open", private=False)
    assert [repo.private for repo in hub.repos.values()] == [True, False]
    hub.repos["models/me/open"].files.clear()
    with pytest.raises(HubError, match=r"me/open: .*private"):
        pushing.push_models(tmp_path, "me/open", private=True)
    assert hub.repos["models/me/open"].files == {}
    flags = ["--run_dir", str(tmp_path), "--push_to_hub", "--hub_model_id", "me/open", "--hub_private"]
    capsys.readouterr()  # the progress of the pushes before
    with pytest.raises(SystemExit) as stop:
        cli.main(lambda: export(parse_cli(ExportConfig, "export", flags)), uses_jax=False)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and err.startswith("error: me/open: ")


@pytest.mark.parametrize("stage", ["POST /api/repos/create", "PUT .*", "POST .*/commit/main"])
def test_a_failed_push_is_one_line_with_the_command_that_repeats_it(stage, hub, tmp_path, capsys):
    run = run_of(tmp_path / "a run", "--push_to_hub", "--hub_model_id", "me/mine", "--hub_private")
    hub.refuse[stage] = (403, f"not today: Bearer {TOKEN}")
    with pushing.pushed(run):
        written(run.folder)
    (line,) = said(run).splitlines()
    assert all(each in line for each in ("push_to_hub: me/mine: ", "3 files", "403", str(run.folder)))
    assert TOKEN not in line
    assert all(repo.files == {} for repo in hub.repos.values())
    words = shlex.split(line[line.index("python -m jaxppo.export") :])
    hub.refuse.clear()
    assert export(parse_cli(ExportConfig, "export", words[3:])) == run.folder
    assert hub.repos["models/me/mine"].files == contents(run.folder / "policy") and hub.repos["models/me/mine"].private
    out = capsys.readouterr()
    assert f"{hub.url}/me/mine\n" in out.out and TOKEN not in out.out + out.err
    assert list(tmp_path.iterdir()) == [run.folder]  # nothing is exported anew


def test_a_hub_that_is_absent_and_ctrl_c_are_failed_pushes(hub, tmp_path, monkeypatch):
    run = run_of(written(tmp_path), "--push_to_hub", "--hub_model_id", "me/mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        with pushing.pushed(run):
            pass
    assert "ConnectError" in said(run) and said(run).count("\n") == 1

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pushing, "push_models", stopped)
    with pushing.pushed(run):
        pass
    assert "push_to_hub" in said(run).splitlines()[1] and "Ctrl-C" in said(run).splitlines()[1]


def test_nothing_is_pushed_after_a_failure_without_the_flag_or_by_another_process(hub, tmp_path, monkeypatch):
    run = run_of(written(tmp_path), "--push_to_hub", "--hub_model_id", "me/mine")
    with pytest.raises(ZeroDivisionError), pushing.pushed(run):
        raise ZeroDivisionError
    with pushing.pushed(run_of(tmp_path)):
        pass
    assert hub.asked == []
    with pushing.pushed(run):
        monkeypatch.setattr(processes, "is_first", lambda: False)
    assert hub.asked == []
    monkeypatch.undo()
    with pushing.pushed(run):
        pass
    assert said(run).endswith(f"{hub.url}/me/mine\n") and len(hub.repos) == 1
    # The repository is named like the run unless it is named.
    hub.repos.clear()
    with pushing.pushed(run_of(written(tmp_path / "my-run"), "--push_to_hub")):
        pass
    assert list(hub.repos) == ["models/me/my-run"]
    hub.asked.clear()
    named = run_of(tmp_path / "my-run", "--push_to_hub", "--hub_model_id", "me-too/other")
    assert pushing.destination(named.config.hub, named.folder) == "me-too/other" and hub.asked == []


def refused(named, run):
    with pytest.raises(ConfigError, match=named), pushing.pushed(run):
        pytest.fail("the run began")


def test_what_cannot_be_pushed_is_met_before_the_run(hub, tmp_path, monkeypatch):
    named = run_of(tmp_path, "--push_to_hub", "--hub_model_id", "me/mine")
    refused("^hub_model_id: ", run_of(tmp_path / "a run", "--push_to_hub"))
    hub.refuse["GET /api/whoami-v2"] = (401, "no")
    refused("^hub_model_id: .*HTTPError", run_of(tmp_path, "--push_to_hub"))
    monkeypatch.delenv("HF_TOKEN")
    refused("^push_to_hub: .*HF_TOKEN", named)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("^push_to_hub: .*HF_HUB_OFFLINE", named)


def test_settings_of_the_hub_are_checked_and_are_those_of_one_call(tmp_path):
    refused_flags = [("hub_model_id", ["--hub_model_id", "user/name"]), ("hub_private", ["--hub_private"])]
    for name in ("name", "a/b/c", "user/", "user/na me", "../x", "user/a--b", "https://hub/user/x"):
        refused_flags.append(("hub_model_id", ["--push_to_hub", "--hub_model_id", name]))
    for setting, flags in refused_flags:
        with pytest.raises(ConfigError, match=f"^{setting}: "):
            parse_cli(SFTConfig, "sft", flags)
    flags = ["--push_to_hub", "True", "--hub_model_id", "user/name", "--hub_private_repo"]  # as in transformers
    config = parse_cli(TrainConfig, "train", flags)
    assert config.hub == HubConfig(push_to_hub=True, hub_model_id="user/name", hub_private=True)
    write_yaml(config, tmp_path / "config.yaml")
    assert "hub" not in (tmp_path / "config.yaml").read_text()
    again = run_of(tmp_path, *flags).resume_command
    assert again.endswith("--push_to_hub --hub_model_id user/name --hub_private")


def test_export_pushes_what_it_writes_where_it_is_said_what(hub, tmp_path, monkeypatch):
    run, out = written(tmp_path / "run"), tmp_path / "out"
    monkeypatch.setattr("jaxppo.export._write", lambda *_: written(out, {"policy/config.json": b"other"}))
    flags = ["--run_dir", str(run), "--push_to_hub", "--hub_model_id", "me/mine"]
    for more in (["--step", "3"], ["--dtype", "bfloat16"], ["--output_dir", str(out)], ["--max_shard_size", "1MB"]):
        hub.repos.clear()
        assert export(parse_cli(ExportConfig, "export", [*flags, *more])) == out
        assert hub.repos["models/me/mine"].files == {"config.json": b"other"}
    hub.repos.clear()
    export(parse_cli(ExportConfig, "export", [*flags, "--dry_run"]))
    assert hub.repos == {}
