"""Data sets of invalid plans, what is wrong with them, and reference plans: `python -m jaxppo.planning repair`."""

import json
import random

import pytest

from jaxppo import data
from jaxppo.config import DataConfig
from jaxppo.errors import ConfigError, DataError
from jaxppo.planning import __main__ as planning
from jaxppo.planning import parse_action, prompts
from jaxppo.planning.datasets.config import InspectConfig, RepairDataConfig
from jaxppo.planning.datasets.files import read_split, write_jsonl
from jaxppo.planning.datasets.inspect import inspect_data
from jaxppo.planning.datasets.renamed_rows import renamed_row
from jaxppo.planning.datasets.repair import repair_rows
from jaxppo.planning.datasets.rows import build_split, form_of
from jaxppo.run.console import Console
from tests.commands import snapshot

ROWS = build_split("rl", sizes={3: 2, 4: 6}, seed=0, unique=True)


def answers_of(row):
    """A valid plan, the plan without its last step (the goal is missed), one that breaks, and no plan at all."""
    steps = row["completion"].split(" ; ")
    return [row["completion"], " ; ".join(steps[:-1]), " ; ".join([steps[0], *steps]), "; ;"]


@pytest.fixture
def source(tmp_path):
    """A folder of rows, and a file of answers; the first problem has valid ones alone."""
    write_jsonl(ROWS, tmp_path / "rl.jsonl")
    lines = [{"id": row["id"], "completion": text} for row in ROWS[1:] for text in 2 * answers_of(row)]
    lines += [{"id": ROWS[0]["id"], "completion": ROWS[0]["completion"]}, {"id": "of-a-test", "completion": ""}]
    write_jsonl(lines, tmp_path / "samples.jsonl")
    return tmp_path


def repair(source, *flags):
    words = ["--samples", str(source / "samples.jsonl"), "--dataset", str(source), "--output_dir", str(source / "made")]
    planning.run(["repair", *words, *flags])
    splits = [split for split in ("train", "repair") if (source / "made" / f"{split}.jsonl").is_file()]
    return {split: read_split(source / "made", split) for split in splits}


def test_conversations_hold_the_models_own_failures_and_end_in_a_reference_plan(source):
    made = repair(source, "--held_out", "0.3")
    by_id = {row["id"]: row for row in ROWS}
    for split, rows in made.items():
        assert all(row["split"] == split for row in rows)
        for row in (row for row in rows if row["failures"]):
            plain = by_id[row["id"].partition("-repair-")[0]]
            assert row["completion"] == plain["completion"]
            # What lies between two `<plan>` is an answer, `not`, and the reason.
            _, *parts = row["prompt"].removesuffix(" <plan>").split(" <plan> ")
            assert len(parts) == row["failures"]
            told = {part.partition("not")[0].strip(): part.partition("not")[2].strip() for part in parts}
            valid, missed, broken, unreadable = answers_of(plain)
            assert told.keys() <= {missed, broken, unreadable} and len(told) == row["failures"]
            for answer, reason in told.items():
                assert (answer == missed) == reason.startswith("<goal> ")
                assert (answer == broken) == reason.startswith(valid.split(" ; ")[0])
                assert (answer == unreadable) == (reason == "")
    plain = [row["id"] for row in made["train"] if not row["failures"]]
    held_out = {row["id"].partition("-repair-")[0] for row in made["repair"]}
    assert len(held_out) == 2 and {*plain} == by_id.keys() - held_out and ROWS[0]["id"] in plain
    lengths = [row["failures"] for row in made["train"] if row["id"].startswith(f"{plain[-1]}-repair-")]
    assert lengths == [1, 2, 3]


def test_no_problem_is_in_both_splits_whatever_its_objects_are_called(source):
    pools = {"object": [f"x{number}" for number in range(9)]}
    copies = [renamed_row(row, pools, random.Random(row["id"])) | {"id": f"{row['id']}-copy"} for row in ROWS]
    write_jsonl([*ROWS, *copies], source / "rl.jsonl")
    made = repair(source, "--held_out", "0.3")
    assert made["repair"] and not {*map(form_of, made["train"])} & {*map(form_of, made["repair"])}


def test_a_finished_data_set_is_left_alone_and_others_are_refused(source, capsys):
    repair(source, "--held_out", "0.3")
    report = json.loads((source / "made" / "report.json").read_text())
    assert report["conversations"] == 3 * (len(ROWS) - 1) and report["leaks"]["leaks"] == 0 and not report["rejected"]
    before = snapshot(source / "made")
    repair(source, "--held_out", "0.3")
    with pytest.raises(ConfigError, match="most_failures 2"):
        repair(source, "--held_out", "0.3", "--most_failures", "2")
    assert snapshot(source / "made") == before
    # `inspect` accepts conversations, and nothing else after a prompt.
    inspect_data(InspectConfig(dataset=str(source / "made"), validator="builtin"), Console())
    rows = read_split(source / "made", "repair")
    write_jsonl([row | {"failures": 0} for row in rows], source / "made" / "repair.jsonl")
    with pytest.raises(SystemExit):
        inspect_data(InspectConfig(dataset=str(source / "made"), validator="builtin"), Console())
    assert "prompt: " in capsys.readouterr().out


def test_own_plans_are_learned_where_there_are_valid_ones(source):
    """Row 1 gets a longer way as its only valid answer, row 2 two of them."""
    ways = {}
    for row in ROWS[1:3]:
        steps = row["completion"].split(" ; ")
        assert steps[0].startswith("unstack")
        back = f"{steps[0]} ; stack {' '.join(steps[0].split()[1:])} ; "
        ways[row["id"]] = [back + back + row["completion"], back + row["completion"]]
    lines = [{"id": name, "completion": text} for name, texts in ways.items() for text in ["", *texts]]
    write_jsonl(lines, source / "samples.jsonl")
    made = {row["id"]: row for row in repair(source, "--held_out", "0")["train"]}
    for name, (_, shorter) in ways.items():
        for row in (made[name], made[f"{name}-repair-1"]):
            assert row["completion"] == shorter and row["planner"] == "self-training"
            assert prompts.render_completion(map(parse_action, row["reference_plan"])) == shorter
            assert row["plan_length"] == len(row["reference_plan"])
    assert made[ROWS[4]["id"]]["completion"] == ROWS[4]["completion"]
    (source / "made").rename(source / "own")
    repair(source, "--held_out", "0", "--learn_from", "reference")
    others = {row["id"]: row["completion"] for row in read_split(source / "made", "train")}
    assert all(others[f"{row['id']}-repair-1"] == row["completion"] for row in ROWS[1:3])


def test_without_a_reason_only_the_failure_is_told():
    config = RepairDataConfig(samples=("x",), feedback="plan", most_failures=1)
    [row] = repair_rows(ROWS[0], answers_of(ROWS[0])[2:3], config)
    assert row["prompt"] == f"{ROWS[0]['prompt']} {answers_of(ROWS[0])[2]} not <plan>"


@pytest.mark.parametrize("style", prompts.PROMPT_STYLES)
def test_every_style_makes_rows_that_can_be_learned_from(style):
    row = build_split("rl", sizes={3: 1}, seed=0, unique=True, prompt_style=style)[0]
    wrong = prompts.render_completion([parse_action(row["reference_plan"][0])] * 2, style, row["domain_pddl"])
    made = repair_rows(row, [wrong, row["completion"], ""], RepairDataConfig(samples=("x",)))
    assert [each["failures"] for each in made] == [1, 2]
    tokenizer = data.word_tokenizer(prompts.words_of([made[-1]["prompt"], made[-1]["completion"]]))
    learned = data.SupervisedData(made, tokenizer, 2, 0, 2048, data.make_chat_template(tokenizer, DataConfig()))
    assert learned.longest > len(tokenizer(row["prompt"])["input_ids"])


def test_bad_input_is_one_line(source):
    with pytest.raises(ConfigError, match="samples"):
        planning.run(["repair"])
    write_jsonl([{"id": row["id"], "completion": row["completion"]} for row in ROWS], source / "samples.jsonl")
    with pytest.raises(DataError, match=r"rl.*8"):
        repair(source)
    assert not (source / "made").exists()
    write_jsonl([{"id": ROWS[0]["id"], "plan": "(a)"}], source / "samples.jsonl")
    with pytest.raises(DataError, match=r"samples\.jsonl:1: .*'completion'"):
        repair(source)
    with pytest.raises(DataError):
        renamed_row(ROWS[0] | {"failures": 1}, {}, random.Random(0))
    for settings in ({"most_failures": 0}, {"held_out": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            RepairDataConfig(**settings)
