"""PlanBench's files as they lie in its two trees: older fields, plans as lists, names of the prompts, tasks 1 to 3."""

import json

import pytest

from jaxppo.errors import DataError
from jaxppo.evaluate.answers.agreement import Reason, agreement
from jaxppo.evaluate.answers.judging import AnswerJudge, rows_of
from jaxppo.planning import format_action
from jaxppo.planning.answers.answer import PlanAnswer
from jaxppo.planning.answers.problems import Problems
from jaxppo.planning.answers.reading import read_answers
from jaxppo.planning.domains import BLOCKSWORLD
from tests.planbench_tree import COLOURS, SENTENCES, lines, make_instances, write_instances
from tests.planning.import_samples import import_into, write_files

ONE, TWO = make_instances(2)
NAME = "results/blocksworld/m/task_1_plan_generation.json"


def coloured(plan):
    """Steps in the words of the prompt: `(stack amber azure)`."""
    return [format_action((action[0], *(COLOURS[ord(name) - 97] for name in action[1:]))) for action in plan]


def detour(one):
    """A valid plan with two steps too many."""
    back = {"unstack": "stack", "pick-up": "put-down"}[one.plan[0][0]]
    return (one.plan[0], (back, *one.plan[0][1:]), *one.plan)


def judge(tmp_path, files, rule="strict", compact_names=True):
    write_files(tmp_path, {name: json.dumps(content) for name, content in files.items()})
    folder, config = write_instances(tmp_path, [ONE, TWO]), tmp_path / "configs" / "blocksworld.yaml"
    if not compact_names:
        config.write_text(config.read_text().partition("encoded_objects_compact")[0])
    problems = Problems(folder)
    answers = read_answers(tmp_path / "results", {}, problems.configs, problems.folders)
    judged, unread = AnswerJudge(problems, rule)(answers)
    return judged, unread, problems


def instances(*entries):
    return [{"instance_id": one.number, **entry} for one, entry in zip((ONE, TWO), entries, strict=False)]


def test_a_problem_that_cannot_be_read_is_read_once(tmp_path, monkeypatch):
    problems = Problems(write_instances(tmp_path, [ONE]))
    find = problems._task
    asked = []
    monkeypatch.setattr(problems, "_task", lambda answer: asked.append(answer) or find(answer))
    answers = [PlanAnswer(f"a{i}", "m", "blocksworld", "p", "no such problem", "(pick-up a)") for i in range(3)]
    messages = []
    for answer in answers:
        with pytest.raises(DataError) as caught:
            problems.find(answer)
        messages.append(str(caught.value))
    assert asked == answers[:1] and len(set(messages)) == 1


@pytest.mark.parametrize("domain", ["blocksworld", "blocksworld_zero_shot_3", "blocksworld/generated_basic"])
def test_older_fields_and_names_of_the_prompt_are_read(tmp_path, domain):
    entries = instances(
        {"extracted_llm_plan": coloured(ONE.plan), "ground_truth_plan": coloured(ONE.plan), "correct": True},
        {"extracted_llm_plan": "\n".join(coloured(TWO.plan[1:])), "correct": False},
    )
    judged, unread, problems = judge(tmp_path, {NAME: {"task": "t1", "domain": domain, "instances": entries}})
    assert unread == [] and [one.verdict.valid for one in judged] == [True, False]
    assert judged[0].plan.actions == ONE.plan
    assert agreement(judged)["equal"] == 2
    (row, _) = rows_of(judged, problems)["m"]
    assert row.row["reference_plan"] == [[format_action(action) for action in ONE.plan]]


def test_short_names_come_from_the_phrases_where_no_others_are_given(tmp_path):
    entries = instances({"extracted_llm_plan": coloured(ONE.plan)})
    files = {NAME: {"task": "t1", "domain": "blocksworld", "instances": entries}}
    (one,), _, _ = judge(tmp_path, files, compact_names=False)
    assert one.verdict.valid


def test_an_optimal_plan_costs_what_the_reference_costs(tmp_path):
    reference = {"ground_truth_plan": lines(ONE.plan)}
    files = {}
    for name, plan, recorded in (("a", ONE.plan, True), ("b", detour(ONE), False)):
        entry = {"instance_id": ONE.number, "extracted_llm_plan": lines(plan), "llm_correct": recorded, **reference}
        content = {"task": "task_2_plan_optimality", "domain": "blocksworld", "instances": [entry]}
        files[f"results/blocksworld/{name}/task_2_plan_optimality.json"] = content
    judged, unread, _ = judge(tmp_path, files)
    assert unread == [] and [(one.verdict.valid, one.correct) for one in judged] == [(True, True), (True, False)]
    assert {one.answer.prompt for one in judged} == {"optimality"}
    assert [(row["task"], row["recorded"], row["judged"]) for row in agreement(judged)["table"]] == [
        ("optimality", 1, 1),
        ("optimality", 0, 0),
    ]
    unknown = judged[0]._replace(reference_cost=None)
    assert unknown.correct is None and agreement([unknown])["compared"] == 0


def test_phrases_of_the_prompt_may_stand_for_objects_and_surplus_arguments_are_a_reason(tmp_path):
    phrases = [" ".join(f"{COLOURS[ord(name) - 97]} block" for name in action[1:]) for action in ONE.plan]
    plan = [f"({action[0]} {words})" for action, words in zip(ONE.plan, phrases, strict=True)]
    surplus = lines([(*action, "extra") for action in TWO.plan])
    entries = instances({"extracted_llm_plan": plan, "correct": True}, {"extracted_llm_plan": surplus, "correct": True})
    judged, _, _ = judge(tmp_path, {NAME: {"task": "t1", "domain": "blocksworld", "instances": entries}})
    assert [one.verdict.valid for one in judged] == [True, False]
    assert [one["reason"] for one in agreement(judged)["disagreements"]] == [Reason.SURPLUS]


CLAIMS = [
    # what the model says of a valid plan, what was extracted of it, whether that is right
    ("The above plan is valid.", None, True),
    ("The above plan is invalid. The following action ...", None, False),
    ("I can not say.", {"valid": True}, True),
    ("I can not say.", None, False),
]


@pytest.mark.parametrize(("answer", "extracted", "correct"), CLAIMS)
def test_a_verification_is_right_where_its_claim_is_true(tmp_path, answer, extracted, correct):
    sentences = "\n".join(
        SENTENCES[action[0]].format(*(COLOURS[ord(name) - 97] for name in action[1:])).lower() for action in ONE.plan
    )
    query = f"[PLAN]\nfirst example\n[PLAN END]\n[STATEMENT] ...\n[PLAN]\n{sentences}\n[PLAN END]\n\n[VERIFICATION]"
    entry = {"query": query, "llm_raw_response": answer, "llm_correct_binary": correct}
    entry |= {"extracted_llm_plan": extracted} if extracted else {}
    content = {"task": "task_3_plan_verification", "domain": "blocksworld", "instances": instances(entry)}
    judged, unread, problems = judge(tmp_path, {"results/blocksworld/m/task_3_plan_verification.json": content}, "last")
    assert unread == [] and [one.correct for one in judged] == [correct]
    assert agreement(judged)["equal"] == 1
    assert rows_of(judged, problems) == {}  # the plan is not the model's


def test_pddl_of_the_prompt_counts_before_the_files(tmp_path):
    shown = BLOCKSWORLD.pddl.replace("pick-up", "k7").replace("put-down", "q1").replace("unstack", "z3")
    shown = shown.replace(":action stack", ":action w9")
    query = (
        f"Parts are headed [DOMAIN] and [QUERY PROBLEM].\n[DOMAIN]\n{shown}\n\n[QUERY PROBLEM]\n{ONE.pddl}\n\n[PLAN]"
    )
    names = {"pick-up": "k7", "put-down": "q1", "unstack": "z3", "stack": "w9"}
    plan = lines([(names[action[0]], *action[1:]) for action in ONE.plan])
    entries = [{"instance_id": 77, "query": query, "extracted_llm_plan": plan, "llm_correct": True}]
    judged, unread, _ = judge(tmp_path, {NAME: {"task": "t1", "domain": "blocksworld", "instances": entries}})
    assert unread == [] and judged[0].verdict.valid
    assert judged[0].origin["domain"] == "blocksworld" and judged[0].origin["problem"] == "blocksworld/77"
    broken = [entries[0] | {"query": query.replace("(define", "(defile"), "instance_id": ONE.number}]
    judged, unread, _ = judge(tmp_path, {NAME: {"task": "t1", "domain": "blocksworld", "instances": broken}})
    assert unread == [] and not judged[0].verdict.valid  # by the file, which has other names


def test_other_tasks_and_instances_without_an_answer_are_a_line_each(tmp_path):
    answered = instances({"extracted_llm_plan": lines(ONE.plan)}, {"query": "x", "ground_truth_plan": ""})
    files = {NAME: {"task": "task_1_plan_generation", "domain": "blocksworld", "instances": answered}}
    for task in ("task_4_plan_reuse", "task_7_plan_execution", "unheard_of"):
        files[f"results/blocksworld/m/{task}.json"] = {"task": task, "domain": "blocksworld", "instances": answered}
    told = instances({"messages": [], "correct": True}, {"messages": [], "correct": False})
    files["results/blocksworld/m/task_1_told.json"] = {"task": "t1", "domain": "blocksworld", "instances": told}
    judged, unread, _ = judge(tmp_path, files)
    assert len(judged) == 1 and len(unread) == 5
    reasons = [one.reason for one in unread]
    assert any("1 of 2 instances have neither" in reason for reason in reasons)
    assert any("2 of 2 instances have neither" in reason for reason in reasons)
    assert sum("task: expected" in reason for reason in reasons) == 3


def test_import_reads_the_same(tmp_path):
    pddl_dir = write_instances(tmp_path, [ONE, TWO])
    entries = instances({"ground_truth_plan": coloured(ONE.plan)}, {"ground_truth_plan": coloured(TWO.plan)})
    content = {"task": "t1", "domain": "blocksworld_zero_shot", "instances": entries}
    source = write_files(tmp_path, {"prompts/blocksworld/task_1_plan_generation.json": json.dumps(content)}) / "prompts"
    rows, _, _ = import_into(tmp_path / "data", source, pddl_dir=str(pddl_dir))
    rows = list(rows.values())
    assert [row["reference_plan"] for row in rows] == [[format_action(step) for step in one.plan] for one in (ONE, TWO)]
    assert {row["planner"] for row in rows} == {"given"}
