"""Answers from files, judged by the command: PlanBench's layout, tables, files of plans, and hostile ones."""

import csv
import io
import json
from contextlib import redirect_stdout
from functools import cache

import pytest

from jaxppo.config import EvaluateConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError, DataError
from jaxppo.evaluate.__main__ import evaluate
from jaxppo.evaluate.answers.agreement import Reason
from jaxppo.evaluate.intervals import wilson
from jaxppo.planning import find_val
from jaxppo.planning.answers.columns import parse_columns
from jaxppo.planning.answers.extraction import RULES
from jaxppo.planning.answers.plan_check import check_plan
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import format_action
from tests.headless import CHROMIUM
from tests.planbench_tree import (
    lines,
    make_instances,
    numbered,
    record,
    renamed,
    sentence,
    without_first,
    without_goal,
    write_instances,
    write_results,
)
from tests.planning.import_samples import planbench_json, write_files
from tests.planning.val_oracle import needs_val

# What nothing else explains, VAL may: where it is not installed, two verdicts simply differ.
UNEXPLAINED = Reason.OTHER if find_val() is None else Reason.RECORD


@cache
def instances():
    return make_instances(6)


@pytest.fixture
def pddl_dir(tmp_path):
    return write_instances(tmp_path, instances())


def run(tmp_path, plans, *flags, pddl_dir=None):
    """The command in this process: `eval.json`, the records of the answers, what was printed, and the page."""
    folder, out = tmp_path / "judged", io.StringIO()
    where = [] if pddl_dir is None else ["--pddl_dir", str(pddl_dir)]
    config = parse_cli(EvaluateConfig, "evaluate", ["--plans", str(plans), *where, "--output_dir", str(folder), *flags])
    with redirect_stdout(out):
        assert evaluate(config) == folder
    records = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    page = (folder / "eval.html").read_text(encoding="utf-8")
    return json.loads((folder / "eval.json").read_text()), records, out.getvalue(), page


def judge(tmp_path, entries, *flags):
    results, pddl_dir = write_results(tmp_path, "m", entries), write_instances(tmp_path, instances())
    return run(tmp_path, results, *flags, pddl_dir=pddl_dir)


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


def test_planbench_results_are_judged_by_model_domain_and_prompt(tmp_path, pddl_dir):
    good = [record(one, lines(one.plan), True) for one in instances()]
    bad = [record(one, without_goal(one), False) for one in instances()[:3]]
    bad += [record(one, without_first(one), False) for one in instances()[3:]]
    write_results(tmp_path, "large", good)
    write_results(tmp_path, "large", good[:2] + bad[2:], "zero_shot")
    results = write_results(tmp_path, "small", bad)
    content, records, out, page = run(tmp_path, results, pddl_dir=pddl_dir)
    models = content["models"]
    assert models["large"]["one_shot"]["validity"] == wilson(6, 6)
    assert models["large"]["zero_shot"]["domains"]["blocksworld"]["validity"] == wilson(2, 6)
    assert models["small"]["one_shot"]["validity"] == wilson(0, 6)
    assert models["large"]["one_shot"]["length_ratio"]["mean"] == 1.0
    assert nonzero(models["small"]["one_shot"]["errors"]) == {"goal_not_reached": 3, "precondition": 3}
    assert nonzero(content["where_plans_break"]["small"]) == {"goal_not_reached": 3, "first_step": 3}
    assert content["answers"] == {"judged": 18, "not_judged": 0}
    assert content["recorded"]["compared"] == content["recorded"]["equal"] == 18
    assert not nonzero(content["recorded"]["reasons"])
    assert sum(one["valid"] for one in records) == 8 and len(records) == 18
    assert "18 of 18" in out
    assert "large" in page and "zero_shot" in page


def test_every_difference_from_the_record_has_its_reason(tmp_path):
    one, two, three, four, five, six = instances()
    entries = [
        record(one, f"```\n{lines(one.plan)}```", True),
        record(two, renamed(two), True),
        record(three, lines(three.plan), False),
        record(four, "I am sorry.", True),
        record(five, renamed(five), False),
        record(six, f"Sure!\n{lines(six.plan)}", False),
    ]
    content, _, out, _ = judge(tmp_path, entries)
    assert content["recorded"]["equal"] == 2  # of the last, too, what is recorded is said of the whole text here
    found = {one["source"].split()[-1]: one["reason"] for one in content["recorded"]["disagreements"]}
    reasons = [Reason.AROUND, UNEXPLAINED, UNEXPLAINED, Reason.OTHER]
    assert found == dict(zip("1234", reasons, strict=True))
    assert all(out.count(one["source"]) == 1 for one in content["recorded"]["disagreements"])
    assert content["extraction"]["rules"] == {
        "strict": {"readable": 3, "valid": 1, "saved": 0},
        "last": {"readable": 5, "valid": 3, "saved": 2},
    }


@needs_val
def test_val_is_a_second_judge_on_demand(tmp_path):
    entries = [record(one, lines(one.plan), True) for one in instances()[:2]]
    entries += [record(one, without_goal(one), False) for one in instances()[2:4]]
    content, records, out, _ = judge(tmp_path, entries, "--eval_validator", "val")
    assert content["val"] == {"asked": 4, "equal": 4, "differences": []}
    assert [one["val"] for one in records] == [True, True, False, False]
    assert "VAL" in out


def test_raw_answers_are_read_as_sentences(tmp_path):
    one, two, three, four = instances()[:4]
    entries = [
        record(one, lines(one.plan), True, f"Here is my plan.\n\n{numbered(one.plan)}\n\nIt reaches the goal."),
        record(two, lines(two.plan), True, f"[PLAN]\n{sentence(two.plan[0])}\nHm.\n{numbered(two.plan)}\n[PLAN END]"),
        record(three, lines(three.plan), True, "\n".join(map(sentence, three.plan[:-2]))),
        record(four, lines(four.plan), False, f"Like this:\n{numbered(four.plan)}"),
    ]
    content, records, _, _ = judge(tmp_path, entries, "--columns", "plan=llm_raw_response", "--extract", "last")
    assert [one["valid"] for one in records] == [True, True, False, True]
    # The record of the third is about another plan; that of the fourth is about this one, and not about the text.
    found = {one["problem"][-1]: one["reason"] for one in content["recorded"]["disagreements"]}
    assert found == {"3": Reason.OTHER, "4": UNEXPLAINED}


def test_one_file_is_read_without_its_folders_and_without_verdicts_by_what_the_model_wrote(tmp_path, pddl_dir):
    one = instances()[0]
    entry = record(one, "", None, "\n".join(map(sentence, one.plan)))
    del entry["extracted_llm_plan"], entry["llm_correct"]
    name = "some/where/task_1_plan_generation_zero_shot_run1.json"
    path = write_files(tmp_path, {name: planbench_json("blocksworld", [entry])}) / name
    content, (judged,), _, _ = run(tmp_path, path, "--extract", "last", pddl_dir=pddl_dir)
    assert judged["valid"] and content["recorded"]["compared"] == 0
    assert (judged["domain"], judged["model"], judged["prompt"]) == ("blocksworld", "where", "zero_shot_run1")


def test_plans_break_in_one_half_or_the_other_and_a_reference_that_is_not_valid_is_none(tmp_path):
    long = next(one for one in instances() if len(one.plan) >= 6)
    other = next(one for one in instances() if one is not long)
    first, last = long.plan[0], long.plan[-1]
    entries = [
        record(long, lines((first, first, *long.plan[1:])), False),  # fails at the second step
        record(long, lines((*long.plan, last)), False),  # fails after the goal
        record(long, lines(long.plan), True),
        record(other, lines(other.plan), True, ground_truth_plan="(pick-up a)"),
    ]
    content, _, _, _ = judge(tmp_path, entries)
    assert nonzero(content["where_plans_break"]["m"]) == {"valid": 2, "first_half": 1, "second_half": 1}
    ratio = content["models"]["m"]["one_shot"]["length_ratio"]
    assert (ratio["mean"], ratio["n"]) == (1.0, 1)


def rows():
    one, two = instances()[:2]
    return [
        {"model": "a", "prompt": "p", "problem": "instance-1", "plan": lines(one.plan), "correct": True},
        {"model": "a", "prompt": "p", "problem": "instance-2", "plan": without_goal(two), "correct": False},
        {"model": "b", "prompt": "p", "problem": "instance-1", "plan": lines(one.plan), "correct": True},
        {"model": "b", "prompt": "p", "problem": "instance-2", "plan": lines(two.plan), "correct": True},
    ]


def write_table(path, table):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_tables_of_all_kinds_give_the_same(tmp_path, suffix):
    path = write_table(tmp_path / f"answers.{suffix}", rows())
    content, records, _, _ = run(tmp_path, path, pddl_dir=write_instances(tmp_path, instances()))
    assert [one["model"] for one in records] == ["a", "a", "b", "b"]
    assert [one["valid"] for one in records] == [one["recorded"] for one in records] == [True, False, True, True]
    assert content["models"]["a"]["p"]["validity"]["rate"] == 0.5


def test_columns_are_named_and_problems_are_pddl_files_or_ids(tmp_path, pddl_dir):
    one = instances()[0]
    tasks = ["blocksworld/generated_basic/instance-1.pddl", "blocksworld/generated_basic/instance-1", "instance-1"]
    table = [{"answer": lines(one.plan).splitlines(), "task": task} for task in tasks]
    table += [{"answer": lines(one.plan), "task": one.pddl, "where": "blocksworld/generated_domain.pddl"}]
    path = write_table(tmp_path / "answers.jsonl", table)
    named = ("--columns", "plan=answer, problem=task, domain=where")
    content, records, _, _ = run(tmp_path, path, *named, pddl_dir=pddl_dir)
    assert [one["valid"] for one in records] == [True] * 4
    # The three names are those of one problem; the fourth calls itself otherwise.
    assert content["models"]["answers"]["answers"]["rows"] == 2
    inline = [{"plan": lines(one.plan), "problem": one.pddl, "domain": BLOCKSWORLD.pddl}]
    path = write_table(tmp_path / "inline.jsonl", inline)
    _, records, _, _ = run(tmp_path / "alone", path, "--columns", "plan=plan")
    assert [(one["domain"], one["problem"], one["valid"]) for one in records] == [("blocksworld", "bw-1", True)]


def test_files_of_plans_are_named_like_their_problems(tmp_path, pddl_dir):
    one, two = instances()[:2]
    files = {
        "plans/lama/blocksworld/instance-1.plan.1": without_goal(one),
        "plans/lama/blocksworld/instance-1.plan.2": lines(one.plan) + "; cost = 4 (unit cost)\n",
        "plans/lama/blocksworld/instance-2.soln": lines(two.plan),
        "plans/lama/blocksworld/notes.txt": "not a plan",
        "plans/instance-2.pddl.plan": without_first(two),
    }
    content, records, _, _ = run(tmp_path, write_files(tmp_path, files) / "plans", pddl_dir=pddl_dir)
    assert [one["source"] for one in content["not_judged"]] == ["lama/blocksworld/notes.txt"]
    assert sorted((one["model"], one["problem"][-1], one["valid"]) for one in records) == [
        ("lama", "1", False),
        ("lama", "1", True),
        ("lama", "2", True),
        ("plans", "2", False),
    ]
    validity = content["models"]["lama"]["plans"]["validity"]
    assert (validity["rate"], validity["n"], validity["samples"]) == (0.75, 2, 3)


def test_fast_downwards_names_of_plans_are_read_where_they_say_the_problem(tmp_path, pddl_dir):
    one, two, three = instances()[:3]
    files = {
        "plans/lama/blocksworld/instance-1.sas_plan": lines(one.plan),
        "plans/lama/blocksworld/instance-2/sas_plan.1": lines(two.plan),
        "plans/lama/blocksworld/instance-2/SAS_PLAN": lines(two.plan),
        "plans/lama/blocksworld/sas_plan.4": lines(three.plan),
        "plans/lama/blocksworld/instance-3_plan.txt": lines(three.plan),
        "plans/lama/blocksworld/instance-3.pddl": three.pddl,
        "plans/.DS_Store": "",
    }
    content, records, out, _ = run(tmp_path, write_files(tmp_path, files) / "plans", pddl_dir=pddl_dir)
    assert sorted((one["problem"][-1], one["valid"]) for one in records) == [("1", True), ("2", True), ("2", True)]
    assert content["answers"] == {"judged": 3, "not_judged": 2}
    assert {one["source"] for one in content["not_judged"]} == {
        "lama/blocksworld/sas_plan.4",
        "lama/blocksworld/instance-3_plan.txt",
    }
    missing = content["without_plan"]["lama"]
    assert any(name.endswith("instance-3") for name in missing)
    assert not any(name.endswith(("instance-1", "instance-2")) for name in missing if "blocksworld/" in name)
    assert f"without a plan of lama: {missing[0]}" in out


@pytest.mark.parametrize("broken", ["domain.pddl", "p.pddl"])
def test_an_error_in_a_file_of_the_folder_names_it(tmp_path, broken):
    one = instances()[0]
    files = {"in/a/domain.pddl": BLOCKSWORLD.pddl, "in/a/p.pddl": one.pddl, "plans/p.plan": lines(one.plan)}
    files[f"in/a/{broken}"] = files[f"in/a/{broken}"].rstrip()[:-1]
    write_files(tmp_path, files)
    with pytest.raises(DataError, match=rf"p\.plan: a/{broken}:\d+: expected"):
        run(tmp_path, tmp_path / "plans", pddl_dir=tmp_path / "in")


def test_a_list_in_json_is_a_table_and_another_column_is_named_with_its_remedy(tmp_path, pddl_dir):
    one = instances()[0]
    row = {"plan": lines(one.plan), "problem": "instance-1", "domain": "blocksworld"}
    table = tmp_path / "rows.json"
    table.write_text(json.dumps([row], indent=1))
    content, records, _, _ = run(tmp_path / "list", table, pddl_dir=pddl_dir)
    assert [(one["model"], one["valid"]) for one in records] == [("rows", True)]
    table.write_text(json.dumps([row, 7, {"Problem": "instance-1", "response": lines(one.plan)}, row]))
    content, records, _, _ = run(tmp_path / "other", table, pddl_dir=pddl_dir)
    assert len(records) == 2
    assert [(one["source"], one["reason"]) for one in content["not_judged"]] == [
        ("rows.json, row 2", "expected a JSON object, got int"),
        (
            "rows.json, row 3",
            "expected the column plan or completion, or its name in --columns plan=COLUMN, got Problem, response",
        ),
    ]


def stamped(plan, starts):
    return "".join(f"{start}: {format_action(action)} [1]\n" for start, action in zip(starts, plan, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_a_planners_file_is_read_as_validate_reads_it_and_a_models_answer_by_the_rule(tmp_path, pddl_dir, rule):
    one = instances()[0]
    steps = range(len(one.plan))
    by_time = stamped(one.plan, steps).splitlines(keepends=True)
    texts = {
        "plain": (lines(one.plan), True),
        "stamped": ("".join(by_time), True),
        "permuted": ("".join(reversed(by_time)), True),
        "at_once": (stamped(one.plan, [0] * len(one.plan)), False),
        "wrong_order": (stamped(one.plan, reversed(steps)), False),
        "fenced": (f"```\n{lines(one.plan)}```\n", False),
        "wrong_name": (lines(one.plan).replace("-", "_"), False),
    }
    files = {f"plans/{name}/blocksworld/instance-1.plan": text for name, (text, _) in texts.items()}
    plans = write_files(tmp_path, files) / "plans"
    # One text as a model's answer, too: the two must not get each other's verdict.
    row = {"plan": texts["stamped"][0], "problem": "instance-1", "domain": "blocksworld"}
    write_table(plans / "table.jsonl", [row])
    _, records, _, _ = run(tmp_path, plans, "--extract", rule, pddl_dir=pddl_dir)
    found = {record["model"]: record["valid"] for record in records}
    assert found.pop("table") is (rule != "strict")
    assert found == {name: valid for name, (_, valid) in texts.items()}
    for name, (text, valid) in texts.items():
        assert check_plan(BLOCKSWORLD.pddl, one.pddl, text)["valid"] is valid, name


@needs_val
def test_one_list_of_steps_has_one_verdict_with_words_around_it_and_without(tmp_path, pddl_dir):
    plan = lines(instances()[0].plan).replace("-", "_").replace("pick_up", "PickUp")
    texts = [plan, f"Plan:\n{plan}", f"```\n{plan}```"]
    rows = [{"problem": "instance-1", "plan": text, "correct": False} for text in texts]
    path = write_table(tmp_path / "answers.jsonl", rows)
    content, records, _, _ = run(tmp_path, path, "--extract", "last", pddl_dir=pddl_dir)
    assert [record["valid"] for record in records] == [True] * 3
    assert content["extraction"]["rules"]["strict"] == {"readable": 1, "valid": 0, "saved": 0}
    assert content["extraction"]["rules"]["last"] == {"readable": 3, "valid": 3, "saved": 3}
    # VAL refuses the first as it is written, which is what its record is about.
    reasons = [one["reason"] for one in content["recorded"]["disagreements"]]
    assert reasons == [Reason.OTHER, Reason.AROUND, Reason.AROUND]


def test_what_is_broken_is_a_line_each(tmp_path, pddl_dir):
    one = instances()[0]
    good = record(one, lines(one.plan), True)
    entries = [good, good | {"instance_id": 99}, {"query": "x"}, "text", good | {"llm_correct": "perhaps"}]
    entries += [good | {"extracted_llm_plan": 7}, good | {"instance_id": None}]
    entries += [good | {"ground_truth_plan": {"cost": 1}}]  # read: its reference is none
    results = write_results(tmp_path, "m", entries)
    whole = planbench_json("blocksworld", [good])
    folder = "results/blocksworld/n"
    write_files(
        tmp_path,
        {
            f"{folder}/task_1_plan_generation.json": whole[: len(whole) // 2],
            f"{folder}/task_1_a.json": "[1, 2]",
            f"{folder}/task_1_b.json": '{"domain": "blocksworld"}',
            f"{folder}/task_1_c.json": b"\xff\xfe",
            f"{folder}/task_1_d.json": "[" * 100_000,
            f"{folder}/task_3.json": planbench_json("blocksworld", [good], "task_3_plan_verification"),
            f"{folder}/answers.jsonl": '{"plan": "(a)"}\n{"plan": \nnull\n',
            f"{folder}/answers.csv": b"plan,problem\n(a)\n",
            f"{folder}/answers.parquet": b"PAR1",
        },
    )
    content, records, out, _ = run(tmp_path, results, pddl_dir=pddl_dir)
    assert [one["valid"] for one in records] == [True, True]
    assert content["answers"] == {"judged": 2, "not_judged": 6 + 7 + 5}
    assert all(one["reason"] and "\n" not in one["reason"] for one in content["not_judged"])
    assert all(len(one["reason"]) <= 300 for one in content["not_judged"])
    assert "2 answers" in out and "18 files" in out


def test_nothing_to_judge_is_an_error(tmp_path, pddl_dir):
    results = write_results(tmp_path, "m", [{"query": "x"}])
    others = write_files(tmp_path / "others", {"m/p1.txt": "(a)"})
    for named, plans, folder in (
        ("plans", results, pddl_dir),
        (r"plans: .*\.jsonl.*\.plan", others, pddl_dir),
        ("nowhere", tmp_path / "nowhere", pddl_dir),
        ("pddl_dir", results, tmp_path / "nowhere"),
    ):
        with pytest.raises(DataError, match=named):
            run(tmp_path, plans, pddl_dir=folder)
    assert not (tmp_path / "judged").exists()


def test_names_of_problems_never_leave_the_folder(tmp_path):
    pddl_dir = write_instances(tmp_path, instances()[1:])
    one, good = instances()[:2]
    files = {"secret/instance-1.pddl": one.pddl, "secret/domain.pddl": BLOCKSWORLD.pddl}
    absolute = write_files(tmp_path, files) / "secret" / "instance-1.pddl"
    names = ["../secret/instance-1", "../secret/instance-1.pddl", "../../secret/instance-1.pddl", str(absolute)]
    names += ["/etc/passwd", "instance-1\0", "*", "."]
    entries = [record(one, lines(one.plan), True, instance_id=name) for name in names]
    results = write_results(tmp_path, "m", [record(good, lines(good.plan), True), *entries])
    rows = [{"plan": lines(one.plan), "problem": name, "domain": "../secret/domain.pddl"} for name in names]
    table = [*rows, *(row | {"domain": BLOCKSWORLD.pddl} for row in rows), rows[0] | {"problem": one.pddl}]
    write_table(results / "answers.jsonl", table)
    content, records, _, _ = run(tmp_path, results, pddl_dir=pddl_dir)
    assert len(records) == 1 and content["answers"]["not_judged"] == 3 * len(names) + 1


TIMED = """(define (domain walks) (:requirements :durative-actions) (:predicates (at ?x))
  (:durative-action go :parameters (?x) :duration (= ?duration 1) :condition (at start (not (at ?x)))
   :effect (at end (at ?x))))"""


MANY = """(define (domain d) (:requirements :adl) (:predicates (r ?x ?y) (done))
  (:action mark :parameters (?x ?y) :precondition () :effect (r ?x ?y))
  (:action go :parameters (?x) :precondition (forall (?a ?b ?c ?d) (or (r ?a ?b) (not (r ?c ?d)))) :effect (done)))"""


@needs_val
def test_val_judges_what_only_it_understands_or_fills_with_objects_in_time(tmp_path):
    names = " ".join(f"o{number}" for number in range(20))
    files = {
        "walks/domain.pddl": TIMED,
        "walks/p.pddl": "(define (problem p) (:domain walks) (:objects a b) (:init) (:goal (and (at a) (at b))))",
        "many/domain.pddl": MANY,
        "many/q.pddl": f"(define (problem q) (:domain d) (:objects {names}) (:init) (:goal (done)))",
    }
    texts = ["0: (go a) [1]\n0: (go b) [1]", "0: (go b) [1]\n2: (go a) [1]", "0: (go a) [1]"]
    table = [{"plan": text, "problem": "p"} for text in texts]
    table += [{"plan": text, "problem": "q"} for text in ("(go o1)", "(go o1 o2)")]
    path, pddl_dir = write_table(tmp_path / "answers.csv", table), write_files(tmp_path / "pddl", files)
    content, records, _, _ = run(tmp_path, path, pddl_dir=pddl_dir)
    assert [record["valid"] for record in records] == [True, True, False, True, False] and content["not_judged"] == []
    assert [len(record["plan"]) for record in records[:3]] == [2, 2, 1]  # they keep their steps
    cell = content["models"]["answers"]["answers"]["domains"]["walks"]
    assert cell["exact_match"] is None and cell["lccs"] is None
    # Files of planners: time stamps are part of a plan for `p`, and only the order of one for `q`.
    plans = write_files(tmp_path / "plans", {"a/p.plan": texts[0], "b/p.plan": texts[2], "c/q.soln": "0: (go o1) [1]"})
    _, records, _, _ = run(tmp_path / "planners", plans, pddl_dir=pddl_dir)
    assert [(record["valid"], len(record["plan"])) for record in records] == [(True, 2), (False, 1), (True, 1)]


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c", "\x1c"], ids=ascii)
def test_a_cell_of_a_csv_file_ends_where_the_writer_ended_it(tmp_path, pddl_dir, mark):
    # On one line, else the writer quotes the cell.
    table = [row | {"plan": f"{' '.join(row['plan'].split())}{mark}and so on"} for row in rows()]
    _, records, _, _ = run(tmp_path, write_table(tmp_path / "answers.csv", table), pddl_dir=pddl_dir)
    assert [record["answer"] for record in records] == [row["plan"] for row in table]


SCRIPT = '<script>alert(1)</script><img src=x onerror="alert(2)">'


def test_hostile_text_is_shown_and_never_run(tmp_path, pddl_dir, request):
    three = instances()[2]
    formula = '=HYPERLINK("http://x","y")'
    table = [
        {"model": SCRIPT, "prompt": "</script>\x1b[31m", "problem": "instance-1", "plan": SCRIPT, "correct": "true"},
        {"model": formula, "prompt": "\u202e", "problem": "instance-2", "plan": formula, "correct": "true"},
        {"model": "m", "prompt": "p", "problem": "instance-3", "plan": lines(three.plan), "correct": "true"},
        {"model": "m", "prompt": "p", "problem": f"{SCRIPT}\n", "plan": "", "correct": ""},
    ]
    path = write_table(tmp_path / "answers.csv", table)
    content, records, out, page = run(tmp_path, path, pddl_dir=pddl_dir)
    assert [one["valid"] for one in records] == [False, False, True]
    assert content["answers"]["not_judged"] == 1
    assert "<script>alert" not in page and "onerror=&#34;" in page and "<img" not in page
    assert len(page) < 300_000
    assert "\x1b" not in out and "\u202e" not in out
    if CHROMIUM is not None:
        browser = request.getfixturevalue("browser")
        problems = len(browser.problems)
        browser.open((tmp_path / "judged" / "eval.html").as_uri())
        assert browser.problems[problems:] == []
        assert browser.run("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("columns", ["plan", "plan=a,plan=b", "answer=a"])
def test_columns_that_say_nothing_are_refused(columns):
    with pytest.raises(ConfigError, match="columns"):
        parse_columns(columns)
