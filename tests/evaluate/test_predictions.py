"""Files of plans, matching them with rows, and what their lines may not be."""

import json

import pytest

from jaxppo.errors import DataError
from jaxppo.evaluate import predictions
from jaxppo.evaluate.predictions import Prediction, judge_rows, match_plans, prediction_records, read_plans
from jaxppo.planning import find_val
from jaxppo.planning.datasets.files import write_jsonl
from jaxppo.reward_functions import plan
from jaxppo.reward_functions.plan import PlanScoring
from tests.lamps import COST_DOMAIN, COST_PROBLEM, judged, lamp_row


def plan_file(folder, *lines):
    path = folder / "plans.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_read_plans_reads_each_form(tmp_path):
    path = plan_file(
        tmp_path,
        {"id": "p0", "plan": "(light a)\n(light b)"},
        "",
        {"id": "p1", "plan": ["(light a)", "(LIGHT b)"], "ended": True, "seed": 3, "model": "mine"},
        {"id": "p0", "completion": "light a ; light b", "ended": False},
        {"id": "p2", "completion": None},
        {"id": "p2", "plan": []},
    )
    assert read_plans(path) == {
        "p0": [Prediction("(light a)\n(light b)", is_pddl=True), Prediction("light a ; light b", False)],
        "p1": [Prediction("(light a)\n(LIGHT b)", True, 3, True)],
        "p2": [Prediction(None), Prediction("", is_pddl=True)],
    }
    path.write_text('{"id": "p0", "plan": "(light a)"}', encoding="utf-8-sig")  # passes over a byte order mark
    assert read_plans(path) == {"p0": [Prediction("(light a)", is_pddl=True)]}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"plan": ""}, "id"),
        ({"id": "p"}, "completion"),
        ({"id": "p", "plan": "", "completion": ""}, "plan and completion"),
        ({"id": "p", "plan": 1}, "plan"),
        ({"id": "p", "completion": ["a"]}, "completion"),
        ({"id": "p", "plan": "", "ended": "yes"}, "ended"),
        ({"id": "p", "plan": "", "seed": True}, "seed"),
    ],
)
def test_read_plans_names_file_line_and_field(tmp_path, line, named):
    path = plan_file(tmp_path, {"id": "first", "plan": ""}, "", line)
    with pytest.raises(DataError, match=rf"plans\.jsonl:3.*\b{named}\b"):
        read_plans(path)


@pytest.mark.parametrize("content", [None, b"\xe9", b"\n \n"], ids=["no file", "no UTF-8", "no line"])
def test_read_plans_refuses_files_that_hold_none(tmp_path, content):
    if content is not None:
        (tmp_path / "plans.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"plans\.jsonl"):
        read_plans(tmp_path / "plans.jsonl")


def test_match_plans_lists_ids_of_one_side_only():
    rows = [lamp_row(f"p{i}") for i in range(14)]
    plans = {"p0": [Prediction("")], "p1": [Prediction("x"), Prediction("y")], "q": [Prediction("")]}
    with pytest.raises(DataError, match=r"12 .*p2, p3, p4, p5, p6, p7, p8, p9, p10, p11 .*2 .*1 .*q"):
        match_plans(rows, plans)
    del plans["q"]
    assert match_plans(rows[:2], plans) == [[Prediction("")], [Prediction("x"), Prediction("y")]]
    with pytest.raises(DataError, match="p0"):
        match_plans([*rows[:2], rows[0]], plans)


OWN_STYLE = {"nl": "use light on a. use light on b.", "pddl": "(light a)(light b)", "atoms": "light a ; light b"}


@pytest.mark.parametrize("style", OWN_STYLE)
def test_judge_rows_reads_completions_in_the_style_of_their_row_and_pddl_alike_in_all(style):
    row = lamp_row(prompt_style=style)
    (done,) = judge_rows([row], [[Prediction(text) for text in OWN_STYLE.values()]])
    assert [one.outcome.verdict.valid for one in done.predictions] == [name == style for name in OWN_STYLE]
    pddl = {
        "(LIGHT A) ; comment\n( light b )": (None, None),
        "": ("goal_not_reached", None),
        "(light a) (fly b)": ("unknown_action", 2),
        "(light a b)": ("wrong_arity", 1),
        "(light a) and then (light b)": ("syntax", 2),
        "light a ; light b": ("syntax", 1),  # right in the style of some rows, but no PDDL
        "use light on a.": ("syntax", 1),
        "(light a": ("syntax", 1),
        "0: (light a)": ("syntax", 1),
    }
    (done,) = judge_rows([row], [[Prediction(text, is_pddl=True) for text in pddl]])
    verdicts = [one.outcome.verdict for one in done.predictions]
    assert [(verdict.error, verdict.failed_step) for verdict in verdicts] == list(pddl.values())
    assert done.predictions[0].outcome.actions == (("light", "a"), ("light", "b"))


def test_judge_rows_counts_no_answer_as_no_plan_and_wants_one_for_each_row():
    lit = lamp_row(problem_pddl=lamp_row()["problem_pddl"].replace("(have b)", "(lit a) (lit b)"), reference_plan=[])
    (nothing,) = judge_rows([lit], [[Prediction(None), Prediction("")]])
    assert [one.outcome.verdict.valid for one in nothing.predictions] == [False, True]
    assert not nothing.predictions[0].is_readable
    with pytest.raises(DataError, match="got 2"):
        judge_rows([lamp_row()], [[Prediction("")], [Prediction("")]])
    with pytest.raises(DataError, match=r"\bp$"):
        judge_rows([lamp_row()], [[]])


def test_answer_records_are_read_back(tmp_path):
    row, other = lamp_row("p"), lamp_row("q")
    predictions = [
        [Prediction("light a", True, 1), Prediction("<b>", False)],
        [Prediction("(light a)", is_pddl=True), Prediction(None)],
    ]
    done = judge_rows([row, other], predictions)
    write_jsonl(prediction_records(done), tmp_path / "samples.jsonl")
    assert list(read_plans(tmp_path / "samples.jsonl").values()) == predictions
    first = prediction_records(done)[0]
    assert first["valid"] is False and first["error"] == "goal_not_reached" and first["failed_condition"] == "(lit b)"


def test_reference_length_and_cost_are_of_the_best_reference():
    (row,) = judged(
        "", reference_plan=[["(light a)", "(light a)", "(light b)"], ["(light b)", "(light a)"], ["(light a)"]]
    )
    assert (row.reference_length, row.reference_cost) == (1, 2.0)  # the shortest one is not valid
    (row,) = judged("", reference_plan=[])
    assert (row.reference_length, row.reference_cost) == (0, None)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (COST_PROBLEM, 10.0),
        (COST_PROBLEM.replace("minimize", "maximize"), None),
        (COST_PROBLEM.replace("(= (total-cost) 0)", "(= (total-cost) -20.0)"), None),
    ],
)
def test_costs_mean_something_where_they_are_to_be_small(problem, expected):
    columns = {"domain_pddl": COST_DOMAIN, "problem_pddl": problem, "reference_plan": ["(steal a)"]}
    (row,) = judged("buy a", **columns)
    assert row.reference_cost == expected


@pytest.mark.skipif(find_val() is None, reason="VAL is not installed")
def test_judge_rows_by_val_knows_progress_too():
    rows, predictions = [lamp_row("p"), lamp_row("q")], [[Prediction("light a ; light c")], [Prediction("light a )")]]
    done = judge_rows(rows, predictions, PlanScoring(validator="val"))
    assert done[0].predictions[0].progress.goals_reached == 1
    assert done[1].predictions[0].progress.goals is None


def test_unsupported_pddl_has_no_progress(monkeypatch):
    (row,) = judged("light a")
    verdict = row.predictions[0].outcome.verdict

    def refuse(*_):
        raise predictions.UnsupportedPddlError("domain", 1, "no")

    for module in (predictions, plan):
        monkeypatch.setattr(module, "validate_actions", refuse)
    outcome = row.predictions[0].outcome._replace(verdict=type(verdict)(False, True, False))
    assert predictions._judged(row.row, row.predictions[0].prediction, outcome).progress.goals is None
    assert predictions.JudgedRow(row.row, row.predictions).reference_cost is None
