"""A data set's folder: nothing invalid in a split, everything left out listed, files that other programs read."""

import json
import os

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from jaxppo.errors import DataError
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.datasets.card import data_card
from jaxppo.planning.datasets.files import read_split
from jaxppo.planning.datasets.folder import Rejected, kind_of_reason
from tests.planning.dataset_rows import FILES, row, write


@pytest.fixture
def rows():
    return {"test": [row("test", 0)], "train": [row("train", 0), row("train", 1), row("train", 2, "ferry")]}


PLAN = row("train", 1)["reference_plan"]


def listed(folder):
    return [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]


def test_write_dataset_writes_rows_report_and_what_was_left_out(rows, tmp_path):
    rejected = [Rejected("a", "ferry", "train", "somewhere", "timeout")]
    folder = tmp_path / "new"
    report = write(folder, rows, rejected, figures={"seed": 3})
    assert {path.name for path in folder.iterdir()} == FILES | {"train.jsonl", "test.jsonl"}
    assert {split: read_split(folder, split) for split in rows} == rows
    assert json.loads((folder / "report.json").read_text()) == report
    assert listed(folder) == [rejected[0]._asdict()] and report["rejected"] == {"timeout": 1}
    assert list(report["splits"]) == ["train", "test"] and report["seed"] == 3 and report["leaks"]["leaks"] == 0
    lengths = [row["plan_length"] for row in rows["train"][:2]]
    figures = report["splits"]["train"]["gripper"]
    assert figures["rows"] == 2 and figures["planners"] == {"builtin 1": 2}
    assert figures["plan_length"] == {"min": min(lengths), "median": sum(lengths) / 2, "max": max(lengths)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reference_plan": ["(pick ball1 room1 left)"]}, "invalid plan at step 1: "),
        ({"reference_plan": ["pick"]}, "invalid plan: "),
        ({"problem_pddl": "(define (problem p) (:domain gripper) (:objects a"}, "unreadable: <problem>:1: "),
        ({"id": "gripper-train-0"}, "duplicate id"),
        ({"reference_plan": [PLAN, PLAN[:-1]]}, "invalid plan: goal_not_reached (at ball"),
    ],
)
def test_write_dataset_never_writes_a_bad_row(rows, tmp_path, change, reason):
    bad = rows["train"][1] | change
    rows["train"][1] = bad
    report = write(tmp_path, rows)
    (entry,) = listed(tmp_path)
    assert entry["reason"].startswith(reason) and entry["id"] == bad["id"] and entry["split"] == "train"
    assert read_split(tmp_path, "train") == [rows["train"][0], rows["train"][2]]
    assert report["rejected"] == {kind_of_reason(reason): 1}


def test_write_dataset_asks_val(rows, tmp_path, fake_val):
    fake_val("print('Plan executed successfully - checking goal\\nGoal not satisfied\\nPlan invalid'); sys.exit(1)")
    rows["train"][1] |= {"reference_plan": []}
    with pytest.raises(DataError):
        write(tmp_path / "none", rows, use_val=True)
    assert not (tmp_path / "none").exists()
    fake_val(
        "valid = 'car' in PLAN\nprint('Plan executed successfully - checking goal')\n"
        "print('Plan valid\\nFinal value: 1\\nSuccessful plans:' if valid else 'Goal not satisfied\\nPlan invalid')\n"
        "sys.exit(0 if valid else 1)"
    )
    report = write(tmp_path / "some", rows, use_val=True)
    assert report["validators"] == ["builtin", "VAL"] and list(report["splits"]) == ["train"]
    reasons = sorted(entry["reason"] for entry in listed(tmp_path / "some"))
    assert reasons[:2] == ["invalid plan: goal_not_reached (VAL)"] * 2  # those that only VAL was asked to refuse
    assert len(reasons) == 3 and reasons[2].startswith("invalid plan: goal_not_reached (at ball")


def test_columns_are_equal_in_all_rows_and_of_the_kinds_that_tables_have(rows, tmp_path):
    rows["train"][1] |= {"source": "a.pddl", "reference_plan": [PLAN, PLAN]}
    write(tmp_path / "data", rows)
    assert listed(tmp_path / "data") == []
    read = [row for split in rows for row in read_split(tmp_path / "data", split)]
    assert {tuple(row) for row in read} == {(*datasets.COLUMNS, "source")}
    assert [row["source"] for row in read] == [None, None, "a.pddl", None]
    assert all(isinstance(plan, list) for row in read for plan in row["reference_plan"])  # one shape of plans
    rows["train"][1]["source"] = {"file": "a.pddl"}
    with pytest.raises(DataError, match="source"):
        write(tmp_path / "other", rows)
    assert not list((tmp_path / "other").glob("*"))


def test_the_datasets_library_gives_the_same_rows(rows, tmp_path):
    import datasets as hugging_face

    rows["train"][0] |= {"optimal_cost": 3, "note": "é \u2028 'x'", "share": 0.5, "sure": True, "tags": ["a"]}
    folder = tmp_path / "data"
    write(folder, rows)
    loaded = hugging_face.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == set(rows)
    for split, own in rows.items():
        full = [{name: row.get(name) for name in read_split(folder, split)[0]} for row in own]
        assert read_split(folder, split) == full == list(loaded[split])


def test_read_split_names_what_it_cannot_read(rows, tmp_path):
    for split, own in rows.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(own), tmp_path / f"{split}.parquet")
    assert read_split(tmp_path, "train") == rows["train"]
    with pytest.raises(DataError, match=r"train\.parquet:1: .*'score'"):
        read_split(tmp_path, "train", {"score": float})
    with pytest.raises(DataError, match=r"rl\.jsonl.*\.parquet.* got test\.parquet, train\.parquet in .*train_split"):
        read_split(tmp_path, "rl")
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"train\.parquet"):
        read_split(tmp_path, "train")


def test_a_folder_without_a_report_is_not_complete(rows, tmp_path, monkeypatch):
    """A run that dies at any moment leaves whole files, and the report only at the very end."""
    write(tmp_path, rows)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    replace = os.replace
    for n_written in range(len(whole)):
        targets = []

        def dying_replace(source, target, targets=targets, n_written=n_written):
            if len(targets) == n_written:
                raise KeyboardInterrupt
            targets.append(target)
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying_replace)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, rows)
        left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")}
        assert "report.json" not in left and left.items() <= whole.items()
    monkeypatch.undo()
    write(tmp_path, rows)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_the_card_has_figures_and_metadata(rows, tmp_path):
    report = write(tmp_path, rows, [Rejected("a", "ferry", "train", "", "timeout")] * 2, licence="apache-2.0")
    text = (tmp_path / "README.md").read_text()
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert metadata["license"] == "apache-2.0"
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    assert metadata["configs"][0]["data_files"] == files
    lengths = sorted(row["plan_length"] for row in rows["train"][:2])
    assert f"| train | gripper | 2 | {lengths[0]}, {sum(lengths) / 2:g}, {lengths[1]} |" in text
    assert "1 pairs" in text and "| timeout | 2 |" in text and "by hand" in text and "builtin 1" in text
    report |= {"shortfalls": ["rl of ferry: 3 of 50 rows"]}
    assert "rl of ferry: 3 of 50 rows" in data_card(report, {"id": "string"})


def test_the_card_shows_text_from_outside_as_text(rows, tmp_path):
    hostile = "x|y`<script>alert(1)</script>\n---\n# Title [a](b) \u202e"
    rows["train"][0] |= {"domain": hostile, "planner": hostile}
    write(tmp_path, rows, title=hostile, command=hostile)
    text = (tmp_path / "README.md").read_text()
    assert "<script>" not in text.split("---\n", 2)[2] and "\n# Title [" not in text
    assert text.count("\n---\n") == 1 and "\u202e" not in text
    assert "license" not in yaml.safe_load(text.split("---\n")[1])  # nobody said which
    rows_of_table = [line for line in text.splitlines() if line.startswith("| train |")]
    assert len(rows_of_table) == 3 and all(line.replace("\\|", "").count("|") == 6 for line in rows_of_table)
