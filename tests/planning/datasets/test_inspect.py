"""`python -m jaxppo.planning inspect`: the figures of a data set, and whatever is wrong with its rows."""

import shutil

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning.__main__ import run
from jaxppo.planning.datasets.config import InspectConfig
from jaxppo.planning.datasets.files import read_jsonl, write_jsonl
from jaxppo.planning.datasets.inspect import inspect_data
from jaxppo.run.console import Console
from tests.commands import snapshot
from tests.planning.import_samples import (
    PIPES,
    import_into,
    lamp_files,
    lamp_plan,
    lines,
    pipe_plan,
    pipe_problem,
    write_files,
)

SIZES = range(3, 8)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Ten rows of two domains in the split `test`, plans of 2 to 7 steps."""
    folder = tmp_path_factory.mktemp("imported")
    files = lamp_files({f"p{n}": (n, n - 1) for n in SIZES}, "lamps/") | {"pipes/domain.pddl": PIPES}
    for n in SIZES:
        files |= {f"pipes/p{n}.pddl": pipe_problem(n), f"pipes/p{n}.plan": lines(pipe_plan(n))}
    import_into(folder / "data", write_files(folder / "in", files))
    return folder / "data"


@pytest.fixture
def dataset(imported, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(imported, tmp_path / "data")


def wrong_after(dataset, capsys, **settings):
    """What `inspect` says is wrong; it has to end with status 1."""
    with pytest.raises(SystemExit) as stop:
        inspect_data(InspectConfig(dataset=str(dataset), **settings), Console())
    assert stop.value.code == 1
    shown = capsys.readouterr().out.splitlines()
    return [line.removeprefix("wrong: ") for line in shown if line.startswith("wrong: ")]


def change(dataset, index, **columns):
    rows = read_jsonl(dataset / "test.jsonl")
    rows[index] |= columns
    write_jsonl(rows, dataset / "test.jsonl")


def test_inspect_data_finds_nothing_wrong_and_shows_figures_and_rows(dataset, capsys):
    before = snapshot(dataset)
    figures = inspect_data(InspectConfig(dataset=str(dataset)), Console(quiet=True))
    run(["inspect", "--dataset", str(dataset), "--show", "2"])
    lamps, pipes = (figures["test"][domain] for domain in ("lamps", "pipes"))
    assert lamps["rows"] == pipes["rows"] == len(SIZES)
    assert lamps["plan_length"] == {"min": 3, "median": 5, "max": 7}
    assert pipes["plan_length"] == {"min": 2, "median": 2, "max": 2}
    assert lamps["n_objects"] == {"min": 3, "median": 5, "max": 7}
    assert lamps["planners"] == {"given": len(SIZES)}
    shown = capsys.readouterr().out
    assert "all right" in shown and all(word in shown for word in ("lamps", "pipes", "3-5-7"))
    assert "<init> lamp l0 ; next l0 l1 ; next l1 l2 <goal> on l2 <plan>" in shown
    assert "-> switch-on l0 ; pass l0 l1 ; pass l1 l2" in shown and shown.count("-> ") == 2
    assert snapshot(dataset) == before


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"reference_plan": lamp_plan(2)[1:]}, ["reference_plan", "step 1", "(on l0)"]),
        ({"reference_plan": [lamp_plan(2), ["(switch-on l0)"]]}, ["reference_plan", "goal_not_reached", "(on l2)"]),
        ({"reference_plan": ["switch-on l0"]}, ["'switch-on l0'"]),
        ({"prompt": "<init> lamp l0 <goal> on l2 <plan>"}, ["prompt", "'<init> lamp l0 <goal> on l2 <plan>'"]),
        ({"completion": "switch-on l0 ; pass l0 l1"}, ["completion", "'switch-on l0 ; pass l0 l1'"]),
        ({"completion": "switch-on l0 ; ; pass l0 l1"}, ["completion", "'switch-on l0 ; ; pass l0 l1'"]),
        ({"plan_length": 4}, ["plan_length", "3", "4"]),
        ({"n_objects": 4}, ["n_objects", "3", "4"]),
        ({"split": "train"}, ["split", "train"]),
        ({"prompt_style": "prose"}, ["prompt_style", "'prose'"]),
        ({"problem_pddl": "(define (problem x))"}, ["<problem>:1: "]),
    ],
)
def test_inspect_data_finds_what_is_wrong_with_a_row(columns, words, dataset, capsys):
    change(dataset, 0, **columns)
    first = wrong_after(dataset, capsys)[0].removeprefix("test/lamps/p3: ")
    assert all(word in first for word in words), first


def test_inspect_data_finds_what_is_wrong_with_the_whole(dataset, capsys):
    rows = read_jsonl(dataset / "test.jsonl")
    write_jsonl([*rows, rows[1]], dataset / "test.jsonl")
    write_jsonl([{**rows[2], "split": "train"}], dataset / "train.jsonl")
    (dataset / "rl.jsonl").write_text('{"id": 5}\n')
    expected = [
        ("rl.jsonl:1", "'id'"),
        ("lamps/p5", "2"),
        ("lamps/p4", "2"),
        ("leaks", "2"),
    ]
    shown = wrong_after(dataset, capsys)
    assert len(shown) == len(expected)
    for line, words in zip(shown, expected, strict=True):
        assert all(word in line for word in words), line


def test_inspect_data_shows_splits_in_their_usual_order(dataset):
    rows = read_jsonl(dataset / "test.jsonl")
    for number, split in enumerate(("mine", "rl", "test", "train")):
        write_jsonl([{**row, "split": split} for row in rows[number::4]], dataset / f"{split}.jsonl")
    found = inspect_data(InspectConfig(dataset=str(dataset)), Console(quiet=True))
    assert list(found) == ["train", "rl", "test", "mine"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "dataset.*None"),
        ({"dataset": "nowhere"}, "dataset.*'nowhere'"),
        ({"dataset": "."}, "dataset.*jsonl"),
    ],
)
def test_inspect_data_refuses_settings_that_do_not_fit(settings, named, dataset, monkeypatch):
    monkeypatch.chdir(dataset.parent)
    with pytest.raises(ConfigError, match=named):
        inspect_data(InspectConfig(**settings), Console(quiet=True))
    with pytest.raises(ConfigError, match="show"):
        InspectConfig(show=-1)
