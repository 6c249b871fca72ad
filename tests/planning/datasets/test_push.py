"""`python -m jaxppo.planning push`: a data set on a hub of the test's own, and back."""

import pytest
from huggingface_hub import snapshot_download

from jaxppo.errors import ConfigError, DataError, HubError
from jaxppo.planning import __main__ as planning
from jaxppo.planning.datasets.files import read_split, write_json, written_files
from tests import hub_server
from tests.planning.dataset_rows import FILES, row, write


def contents(paths):
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def push(folder, *flags):
    planning.run(["push", str(folder), "--hub_dataset_id", "me/plans", *flags])


def test_a_pushed_data_set_comes_back_as_it_was(hub, tmp_path, capsys):
    folder, rows = tmp_path / "data", {"train": [row("train", 0), row("train", 1)], "test": [row("test", 0)]}
    write(folder, rows)
    (folder / "notes.txt").write_text("mine")  # what jaxppo has not written stays here
    push(folder, "--private")
    shown = capsys.readouterr()
    assert f"{hub.url}/datasets/me/plans" in shown.out and hub_server.TOKEN not in shown.out + shown.err
    assert list(hub.repos) == ["datasets/me/plans"] and hub.repos["datasets/me/plans"].private
    pulled = tmp_path / "pulled"
    snapshot_download("me/plans", repo_type="dataset", local_dir=pulled)
    names = FILES | {f"{split}.jsonl" for split in rows}
    assert contents(pulled.iterdir()) == contents(folder / name for name in names)
    assert {split: read_split(pulled, split) for split in rows} == rows


def test_pushing_again_takes_away_splits_that_are_gone(hub, tmp_path, capsys):
    write(tmp_path / "first", {"train": [row("train", 0)], "test": [row("test", 0)]})
    write(tmp_path / "second", {"test": [row("test", 1)]})
    push(tmp_path / "first")
    repo = hub.repos["datasets/me/plans"]
    repo.files |= {"train.csv": b"theirs", "others.jsonl": b"theirs"}
    push(tmp_path / "second")
    assert repo.files.keys() == FILES | {"test.jsonl", "train.csv", "others.jsonl"} and len(repo.commits) == 2
    push(tmp_path / "second")
    assert repo.files["test.jsonl"] == (tmp_path / "second" / "test.jsonl").read_bytes()
    assert capsys.readouterr().out.count(f"{hub.url}/datasets/me/plans") == 3


def test_what_cannot_be_pushed_is_named(hub, tmp_path):
    folder = tmp_path / "data"
    write(folder, {"test": [row("test", 0)]})
    hub.refuse["POST /api/repos/create"] = (403, "no rights")
    with pytest.raises(HubError, match=r"me/plans.*403.*no rights"):
        push(folder)
    for name in ("plans", "a/b/c", "me/..", ""):
        with pytest.raises(ConfigError, match="hub_dataset_id"):
            planning.run(["push", str(folder), "--hub_dataset_id", name])
    # Only complete data sets, whose report is written last; and no report names files elsewhere.
    (tmp_path / "secret.jsonl").write_text("{}")
    write_json({"splits": {"../secret": {}, "test": {}, str(tmp_path / "secret"): {}}}, folder / "report.json")
    assert {path.name for path in written_files(folder)} == FILES | {"test.jsonl"}
    for report in ([], {"splits": []}, None):
        write_json(report, folder / "report.json")
        if report is None:
            (folder / "report.json").unlink()
        with pytest.raises(DataError, match=r"report\.json"):
            push(folder)
    assert hub.repos == {}
