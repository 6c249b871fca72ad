"""`python -m jaxppo.planning push`: a data set on a hub of the test's own, and back."""

import os
import subprocess
import sys

import pytest
from huggingface_hub import snapshot_download

from jaxppo.errors import ConfigError, DataError, HubError
from jaxppo.planning import __main__ as planning
from jaxppo.planning.datasets.files import read_split, write_json, written_files
from tests import ROOT, hub_server
from tests.planning.dataset_rows import FILES, row, write


@pytest.fixture
def hub(tmp_path):
    """A hub that this process uses."""
    with hub_server.serving() as hub, hub_server.used(hub, str(tmp_path / "home")):
        yield hub
    assert hub.unknown == []


def contents(paths):
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def push(folder, *flags):
    planning.run(["push", str(folder), "--hub_dataset_id", "me/plans", *flags])


def test_a_pushed_data_set_comes_back_as_it_was(hub, tmp_path, capsys):
    folder, rows = tmp_path / "data", {"train": [row("train", 0), row("train", 1)], "test": [row("test", 0)]}
    write(folder, rows, file_format="both")
    (folder / "notes.txt").write_text("mine")  # what jaxppo has not written stays here
    push(folder, "--private")
    shown = capsys.readouterr()
    assert f"{hub.url}/datasets/me/plans" in shown.out and hub_server.TOKEN not in shown.out + shown.err
    assert list(hub.repos) == ["datasets/me/plans"] and hub.repos["datasets/me/plans"].private
    pulled = tmp_path / "pulled"
    snapshot_download("me/plans", repo_type="dataset", local_dir=pulled)
    names = FILES | {f"{split}.{suffix}" for split in rows for suffix in ("jsonl", "parquet")}
    assert contents(pulled.iterdir()) == contents(folder / name for name in names)
    assert {split: read_split(pulled, split) for split in rows} == rows


@pytest.mark.full
def test_a_data_set_pushed_by_the_command_is_loaded_by_its_name(hub, tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "data", {"train": [row("train", 0), row("train", 1)], "test": [row("test", 0)]})
    environment = os.environ | hub_server.variables(hub, str(tmp_path / "other"))

    def python(*words):
        return subprocess.run([sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True)

    pushed = python("-m", "jaxppo.planning", "push", str(tmp_path / "data"), "--hub_dataset_id", "me/plans")
    assert pushed.returncode == 0 and hub_server.TOKEN not in pushed.stdout + pushed.stderr, pushed.stderr
    load = """
from jaxppo.config import DataConfig
from jaxppo.data import load_split
print(*[row["id"] for row in load_split(DataConfig(dataset="me/plans"), "train")])
"""
    loaded = python("-c", load)
    assert loaded.stdout == "gripper-train-0 gripper-train-1\n", loaded.stderr


def test_pushing_again_takes_away_splits_that_are_gone(hub, tmp_path, capsys):
    write(tmp_path / "first", {"train": [row("train", 0)], "test": [row("test", 0)]})
    write(tmp_path / "second", {"test": [row("test", 0)]}, file_format="parquet")
    push(tmp_path / "first")
    repo = hub.repos["datasets/me/plans"]
    repo.files |= {"train.csv": b"theirs", "others.jsonl": b"theirs"}
    push(tmp_path / "second")
    assert repo.files.keys() == FILES | {"test.parquet", "train.csv", "others.jsonl"} and len(repo.commits) == 2
    push(tmp_path / "second")
    assert repo.files["test.parquet"] == (tmp_path / "second" / "test.parquet").read_bytes()
    assert capsys.readouterr().out.count(f"{hub.url}/datasets/me/plans") == 3


def test_a_hub_that_refuses_a_data_set_says_so(hub, tmp_path):
    write(tmp_path / "data", {"test": [row("test", 0)]})
    hub.refuse["POST /api/repos/create"] = (403, "no rights")
    with pytest.raises(HubError, match=r"me/plans.*403.*no rights"):
        push(tmp_path / "data")
    assert hub.repos == {}


@pytest.mark.parametrize("report", [None, [], {"splits": []}])
def test_only_a_complete_data_set_is_pushed(report, tmp_path):
    if report is not None:
        write_json(report, tmp_path / "report.json")
    with pytest.raises(DataError, match=r"report\.json"):
        push(tmp_path)


def test_a_report_names_no_files_elsewhere(tmp_path):
    (tmp_path / "secret.jsonl").write_text("{}")
    folder = tmp_path / "data"
    write(folder, {"test": [row("test", 0)]})
    write_json({"splits": {"../secret": {}, "test": {}, str(tmp_path / "secret"): {}}}, folder / "report.json")
    assert {path.name for path in written_files(folder)} == FILES | {"test.jsonl"}


@pytest.mark.parametrize("name", ["plans", "a/b/c", "me/..", ""])
def test_where_to_push_is_checked(name, tmp_path):
    with pytest.raises(ConfigError, match="hub_dataset_id"):
        planning.run(["push", str(tmp_path), "--hub_dataset_id", name])
