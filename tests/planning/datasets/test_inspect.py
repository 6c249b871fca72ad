import json

import pytest

from jaxppo.errors import ConfigError
from jaxppo.planning import find_val
from jaxppo.planning.__main__ import run
from jaxppo.planning.datasets.config import ImportConfig, InspectConfig, PlannerConfig
from jaxppo.planning.datasets.files import read_jsonl, write_jsonl
from jaxppo.planning.datasets.inspect import inspect_data
from jaxppo.planning.importing.importers import import_problems
from jaxppo.run.console import Console
from tests.planning.import_samples import LAMPS, lamp_plan, lamp_problem, lines, pipe_plan, pipe_problem, write_files
from tests.planning.import_samples import PIPES as PIPES_PDDL

SIZES = range(3, 8)


@pytest.fixture
def dataset(tmp_path):
    """Ten rows of two domains in the split `test`, plans of 2 to 7 steps."""
    files = {f"lamps/p{n}.pddl": lamp_problem(n, n - 1) for n in SIZES}
    files |= {f"lamps/p{n}.plan": lines(lamp_plan(n - 1)) for n in SIZES}
    files |= {f"pipes/p{n}.pddl": pipe_problem(n) for n in SIZES}
    files |= {f"pipes/p{n}.plan": lines(pipe_plan(n)) for n in SIZES}
    files |= {"lamps/domain.pddl": LAMPS, "pipes/domain.pddl": PIPES_PDDL}
    config = ImportConfig(
        source=str(write_files(tmp_path / "in", files)),
        output_dir=str(tmp_path / "data"),
        split="test",
        planners=PlannerConfig(planner="none"),
        use_val=False,
    )
    import_problems(config, Console(quiet=True))
    return tmp_path / "data"


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


def test_inspect_data_finds_nothing_wrong_and_tells_the_figures(dataset, capsys):
    before = {path.name: path.read_bytes() for path in dataset.iterdir()}
    found = inspect_data(InspectConfig(dataset=str(dataset)), Console())
    assert found["wrong"] == []
    assert found["leaks"]["leaks"] == 0
    lamps, pipes = (found["splits"]["test"][domain] for domain in ("lamps", "pipes"))
    assert lamps["rows"] == pipes["rows"] == len(SIZES)
    assert lamps["plan_length"] == {"min": 3, "median": 5, "max": 7}
    assert pipes["plan_length"] == {"min": 2, "median": 2, "max": 2}
    assert lamps["n_objects"] == {"min": 3, "median": 5, "max": 7}
    # <init>, "lamp l0", n - 1 times "; next a b", <goal>, "on l", <plan>
    assert lamps["prompt_words"] == {key: 7 + 4 * (n - 1) for key, n in (("min", 3), ("median", 5), ("max", 7))}
    assert lamps["planners"] == {"given": len(SIZES)}
    shown = capsys.readouterr().out
    assert "all right: plans valid, texts and columns agree, nothing leaks" in shown
    assert all(word in shown for word in ("lamps", "pipes", "3 / 5 / 7", "given"))
    assert {path.name: path.read_bytes() for path in dataset.iterdir()} == before


def test_inspect_data_shows_rows_and_writes_json_where_asked(dataset, tmp_path, capsys):
    run(
        [
            "inspect",
            "--dataset",
            str(dataset),
            "--splits",
            "test",
            "--show",
            "2",
            "--json",
            str(tmp_path / "found.json"),
        ]
    )
    shown = capsys.readouterr().out
    assert "<init> lamp l0 ; next l0 l1 ; next l1 l2 <goal> on l2 <plan>" in shown
    assert "-> switch-on l0 ; pass l0 l1 ; pass l1 l2" in shown
    assert shown.count("-> ") == 2
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["wrong"] == []
    assert found["splits"]["test"]["pipes"]["rows"] == len(SIZES)


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        (
            {"reference_plan": lamp_plan(2)[1:], "plan_length": 2},
            ["reference_plan: invalid plan at step 1: precondition (on l0)"],
        ),
        (
            {"reference_plan": [lamp_plan(2), ["(switch-on l0)"]]},
            ["reference_plan: invalid plan: goal_not_reached (on l2)"],
        ),
        ({"reference_plan": ["switch-on l0"]}, ["expected one action such as '(pick-up a)', got 'switch-on l0'"]),
        ({"reference_plan": [[]]}, ["reference_plan: invalid plan: goal_not_reached (on l2)"]),
        (
            {"prompt": "<init> lamp l0 <goal> on l2 <plan>"},
            ["prompt: expected the problem in the style atoms, got '<init> lamp l0 <goal> on l2 <plan>'"],
        ),
        (
            {"completion": "switch-on l0 ; pass l0 l1"},
            ["completion: expected a reference plan in the style atoms, got 'switch-on l0 ; pass l0 l1'"],
        ),
        (
            {"completion": "switch-on l0 ; ; pass l0 l1"},
            ["completion: expected a reference plan in the style atoms, got 'switch-on l0 ; ; pass l0 l1'"],
        ),
        ({"plan_length": 4}, ["plan_length: expected 3, got 4"]),
        ({"n_objects": 4}, ["n_objects: expected 3, got 4"]),
        ({"split": "train"}, ["split: expected test, got train"]),
        ({"prompt_style": "prose"}, ["prompt_style: expected one of atoms, brief, pddl, nl, got 'prose'"]),
        (
            {"problem_pddl": "(define (problem x))"},
            [
                "<problem>:1: expected a section '(:domain NAME)' in front and a section '(:init ...)', "
                "got '(define (problem x))'"
            ],
        ),
    ],
)
def test_inspect_data_finds_what_is_wrong_with_a_row(columns, wrong, dataset, capsys):
    change(dataset, 0, **columns)
    found = wrong_after(dataset, capsys)
    expected = [f"test/lamps/p3: {sentence}" for sentence in wrong]
    if "reference_plan" in columns and "plan_length" in columns:
        expected.append(found[1])  # the completion is another plan then
        assert found[1].startswith("test/lamps/p3: completion: expected a reference plan")
    assert [sentence for sentence in found if not sentence.startswith("leaks: ")][: len(expected)] == expected


def test_inspect_data_finds_what_is_wrong_with_the_whole(dataset, capsys):
    rows = read_jsonl(dataset / "test.jsonl")
    write_jsonl([*rows, rows[1]], dataset / "test.jsonl")
    write_jsonl([{**rows[2], "split": "train"}], dataset / "train.jsonl")
    (dataset / "rl.jsonl").write_text('{"id": 5}\n')
    assert wrong_after(dataset, capsys) == [
        f"rl: {dataset}/rl.jsonl:1: field 'id': expected str, got 5",
        "lamps/p5: expected one row with this id, got 2",
        "lamps/p4: expected one row with this id, got 2",
        "leaks: expected 0, got 2",
        "test: expected the 10 rows of report.json, got 11",
        "train: expected the 0 rows of report.json, got 1",
    ]


def test_inspect_data_shows_splits_in_their_usual_order(dataset):
    rows = read_jsonl(dataset / "test.jsonl")
    for number, split in enumerate(("mine", "rl", "test", "train")):
        write_jsonl([{**row, "split": split} for row in rows[number::4]], dataset / f"{split}.jsonl")
    (dataset / "report.json").unlink()
    found = inspect_data(InspectConfig(dataset=str(dataset)), Console(quiet=True))
    assert list(found["splits"]) == ["train", "rl", "test", "mine"]


def test_inspect_data_lists_no_more_than_a_screen_and_all_in_json(dataset, tmp_path, capsys):
    rows = read_jsonl(dataset / "test.jsonl")
    spoiled = [{**row, "plan_length": 99, "n_objects": 99, "prompt": "x"} for row in rows]
    write_jsonl(spoiled, dataset / "test.jsonl")
    shown = wrong_after(dataset, capsys, json=str(tmp_path / "found.json"))
    assert len(shown) == 21
    assert shown[-1] == "10 more; --json FILE lists all"
    assert len(json.loads((tmp_path / "found.json").read_text())["wrong"]) == 30


@pytest.mark.skipif(find_val() is None, reason="VAL is not installed")
def test_inspect_data_asks_val(dataset, capsys):
    assert inspect_data(InspectConfig(dataset=str(dataset), validator="val"), Console(quiet=True))["wrong"] == []
    capsys.readouterr()
    change(dataset, 9, reference_plan=pipe_plan(7)[1:])
    assert wrong_after(dataset, capsys, validator="val", splits=("test",))[-1] == (
        "test/pipes/p7: reference_plan: invalid plan at step 1: precondition (open p6) (VAL)"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "dataset: expected the folder of a data set, got None"),
        ({"dataset": "nowhere"}, "dataset: expected the folder of a data set, got 'nowhere'"),
        ({"dataset": "."}, "dataset: expected a folder with <split>.jsonl or <split>.parquet, got ."),
        ({"dataset": "data", "splits": ("test", "rl")}, "splits: expected some of test, got rl"),
    ],
)
def test_inspect_data_refuses_settings_that_do_not_fit(settings, message, dataset, monkeypatch):
    monkeypatch.chdir(dataset.parent)
    with pytest.raises(ConfigError) as error:
        inspect_data(InspectConfig(**settings), Console(quiet=True))
    assert str(error.value) == message


def test_inspect_config_refuses_a_negative_number_of_rows():
    with pytest.raises(ConfigError, match=r"^show: expected 0 or more, got -1$"):
        InspectConfig(show=-1)
