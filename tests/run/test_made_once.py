"""Folders of the cache: made by one of several processes, whole or not at all, and again where they are damaged."""

import multiprocessing
import time
from pathlib import Path

import pytest

from jaxppo.run.made_once import made_once


def write(made: Path) -> None:
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "rows.jsonl").write_text("one\ntwo\n")
    (made / "about").write_text("rows")


def ask(folder: Path) -> None:
    def make(made: Path) -> None:
        with (folder.parent / "makers").open("a") as file:
            file.write("one\n")
        time.sleep(1.0)
        write(made)

    assert (made_once(folder, make) / "about").read_text() == "rows"


def test_of_several_processes_one_makes_the_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=ask, args=(tmp_path / "folder",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "makers").read_text() == "one\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "makers"]


def fail_first(folder: Path) -> None:
    def make(made: Path) -> None:
        begun = folder.parent / f"begun-{time.time_ns()}"
        begun.touch()
        time.sleep(1.0)
        if len(list(folder.parent.glob("begun-*"))) == 1:
            raise RuntimeError("the first one fails")
        write(made)
        (folder.parent / f"made-{begun.name}").touch()

    made_once(folder, make)


def test_who_waited_for_one_that_failed_keeps_others_out(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fail_first, args=(tmp_path / "folder",)) for _ in range(3)]
    for process, pause in zip(processes, (0.3, 1.2, 0.0), strict=True):  # the third comes when the second makes it
        process.start()
        time.sleep(pause)
    for process in processes:
        process.join(60)
    assert sorted(process.exitcode for process in processes) == [0, 0, 1]
    assert len(list(tmp_path.glob("made-*"))) == 1


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda folder: (folder / "about").write_text("rowS"), "about is not as it was written"),
        (
            lambda folder: (folder / "deep" / "rows.jsonl").write_text("one\n"),
            "deep/rows.jsonl is not as it was written",
        ),
        (lambda folder: (folder / "deep" / "rows.jsonl").unlink(), "deep/rows.jsonl: No such file or directory"),
        (lambda folder: (folder / "checksums.json").unlink(), "checksums.json is missing or broken"),
    ],
    ids=["a letter", "a line", "a file", "the checksums"],
)
def test_a_damaged_folder_is_made_again_with_a_warning(damage, what, tmp_path, caplog):
    folder = made_once(tmp_path / "cache" / "folder", write)
    made_once(folder, lambda made: pytest.fail("made twice"))
    damage(folder)
    assert made_once(folder, write) == folder
    assert (folder / "deep" / "rows.jsonl").read_text() == "one\ntwo\n"
    (record,) = caplog.records
    assert record.getMessage() == f"{folder}: expected what was written, got: {what}; made again"
    made_once(folder, lambda made: pytest.fail("made twice"))


def test_what_fails_leaves_nothing(tmp_path):
    def fail(made: Path) -> None:
        write(made)
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        made_once(tmp_path / "folder", fail)
    assert list(tmp_path.iterdir()) == []
