"""The rules that cut a plan out of an answer, and sentences, against plans worked out by hand."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.answers.extraction import RULES, PlanReader
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import PlanError, format_action

STACKS = """(define (domain stacks) (:predicates (on ?x ?y) (clear ?x) (holding ?x))
  (:action pick-up :parameters (?x) :precondition (clear ?x) :effect (holding ?x))
  (:action put-down :parameters (?x) :precondition (holding ?x) :effect (clear ?x))
  (:action stack :parameters (?x ?y) :precondition (holding ?x) :effect (on ?x ?y)))"""
PROBLEM = "(define (problem p) (:domain stacks) (:objects a b) (:init (clear a) (clear b)) (:goal (on a b)))"
CONFIG = {
    "actions": {"pick-up": "pick up the {}", "put-down": "put down the {}", "stack": "stack the {} on top of the {}"},
    "encoded_objects": {"a": "red block", "b": "dark blue block"},
    "encoded_objects_compact": {"a": "red", "b": "blue"},
}


def reader(with_sentences=True):
    problem = parse_problem(PROBLEM, parse_domain(STACKS))
    return PlanReader(problem, Sentences(CONFIG, problem) if with_sentences else None)


SHORT = "(pick-up a)"
FULL = "(pick-up a) (stack a b)"
PROSE = "First (as you know) think.\n(pick-up b)\nWrong, since\n1. (pick-up a),\n2. (stack a b)\nCheck (pick-up a)."

CASES = [
    # text, what strict and last read; None: nothing
    (FULL, FULL, FULL),
    (f"; a comment (stack b a)\n{FULL}\n", FULL, FULL),
    ("", "", ""),
    ("I do not know.", None, None),
    (f"```pddl\n{FULL}\n```", None, FULL),
    (f"```\n{FULL}", None, FULL),  # never closed
    (f"```\n{SHORT}\n```\nNo:\n```\n{FULL}\n```", None, FULL),
    (f"```\n{FULL}\n```\nand then\n```\nno plan\n```", None, FULL),
    (f"[PLAN]\n{FULL}\n[PLAN END] as asked", None, FULL),
    (f"<plan>{FULL}</plan>.", None, FULL),
    ("| (pick-up a) | (stack a b) |", None, FULL),
    (PROSE, None, FULL),  # an action in a sentence is no step
    # No step of these is the domain's: then any will do.
    ("Go: (move a b) (move b a)", None, "(move a b) (move b a)"),
    ("pick up the red block\nstack the red block on top of the dark blue block\n", FULL, FULL),
    ("[PLAN]\npick up the red block\n[PLAN END]\n", SHORT, SHORT),
    ("1. Pick up the red block.\n2. **Stack the red block on top of the dark blue block.**", None, FULL),
    ("1. pick up red block\n2. stack RED on blue", None, FULL),
    ("Pick up a. Stack a on top of b!", None, FULL),
    ("Pick up the green block. Put down the red block onto it.", None, None),  # it begins with no step
    ("unstack the red block on top of the dark blue block", None, None),
]


WRITTEN = [
    "1) (pick-up a)\n2) (stack a b)",
    "1. (pick-up a) - since a is clear\n2. (stack a b) - as asked",
    "1. Take it: (pick-up a)\n2. Place it: (stack a b).",
    "pick-up(a)\nstack(a, b)",
    "PickUp(a)\nStack(a b)",
    "(pick-up, a)\n(stack, a, b)",
    "First pick-up a\nThen stack a b",
    "(pick-up a), then (stack a b).",
    "(pick-up a) -> (stack a b)",
    "(pick\u2013up\u00a0a)\n(stack\u2009a\u202fb)",
    "(PICK\u2011UP A)\n(STACK A B)",
    "0.000: (pick-up a) [1.000]\n1.001: (stack a b) [1.000]",
    "step    0: PICK-UP A\n        1: STACK A B",
    "1. **Pick up** `a`\n2. **Stack** `a` on `b`",
    "| step | action |\n|---|---|\n| 1 | (pick-up a) |\n| 2 | (stack a b) |",
    "| 1 | pick-up | a |\n| 2 | stack | a, b |",
    '["(pick-up a)", "(stack a b)"]',
    '{"plan": [{"action": "pick-up", "args": ["a"]}, {"action": "stack", "args": ["a", "b"]}]}',
    "Thus \\boxed{(pick-up a)\\\\ (stack a b)} and so on.\n(put-down a)",
    "\\boxed{(pick-up a)\n\\text{(stack a b)",
    "\\boxed{(pick-up a) \\textbf{\\text{\\mathrm{(stack a b)}}}}",
    "$(pick-up a)$\n$(stack a b)$",
    "Try (pick-up b)\n(stack b a)\nNo.\n</think>\n(pick-up a)\n(stack a b)",
    "<answer>\n(pick-up a)\n(stack a b)\n</answer>\n\n(pick-up a) takes a.",
    "### Step 1: take a\n(pick-up a)\nNow a is held.\n\n### Step 2: place a\n(stack a b)\nDone.",
    "1. Pick up the red block\n   - Action: pick up the red block\n\n   So it is held.\n2. Stack red onto blue",
    "1. Pick up the red block: put down the red block would undo it.\n2. Stack the red block on the dark blue block.",
    "(pick-up a)\n(stack a b)\n[PLAN END]\n[STATEMENT]\nMy plan is:\n(pick-up b)\n(stack b a)\n",
]
"""Ways to write one plan."""
NOT_WRITTEN = [
    ("1. (pick-up b)\n2. (stack b a)\nThat is wrong. The plan:\n1. (pick-up a)\n2. (stack a b)", FULL),
    ("(pick-up b)\n(put-down b)\n(pick-up b)\nThis is wasteful. Final plan:\n(pick-up a)\n(stack a b)", FULL),
    ("You ask for a plan such as (pick-up b).\n\n(pick-up a)\n(stack a b)\n\nHere (pick-up a) comes first.", FULL),
    (f"{FULL} {FULL}\n\nIn this plan\n- (pick-up a) takes a.", f"{FULL} {FULL}"),  # speaks about the plan
    ("1. (pick-up a)\n2. (pick-up b) is not possible.\n3. (stack a b)", FULL),
    ("1. (pick-up a)\n2. Wait for a while.\n3. (stack a b)", SHORT),  # what cannot be read ends a list
    ("I would pick up a block.", None),
    ("We need (pick-up a) and (stack a b) in some order.", None),
    ("<think>(pick-up a) (stack a b)</think> I do not know.", None),
    ("(pick-up a)\n(stack a z)", "(pick-up a) (stack a z)"),  # a wrong plan, not a shorter one
]


ACTIONS = [{"action": "pick-up", "args": ["a"]}, {"action": "stack", "args": ["a", "b"]}]
STEPS = ["(pick-up a)", "(stack a b)"]
IN_JSON = [
    ACTIONS,
    {"plan": ACTIONS},
    {"thought": "I (pick-up b) or not", "plan": {"steps": ACTIONS}, "cost": 2, "done": None},
    [{"step": number, **step} for number, step in enumerate(ACTIONS)],
    [{**step, "reason": "(pick-up b) fails, no"} for step in ACTIONS],
    [{"args": step["args"], "Action_Name": step["action"].title()} for step in ACTIONS],
    [{"name": "Pick_Up", "arguments": {"?x": "a"}}, {"name": "stack", "arguments": {"?y": "b", "?x": "a"}}],
    [{"op": "pick-up", "block": "a"}, {"op": "stack", "x": "a", "y": "b"}],
    [{"operator": step["action"], "parameters": ", ".join(step["args"])} for step in ACTIONS],
    [{"type": step["action"], "args": step["args"]} for step in ACTIONS],
    [{step["action"]: step["args"]} for step in ACTIONS],
    {"plan": {step["action"]: step["args"] for step in ACTIONS}},
    [{"pick-up": "a"}, {"stack": {"y": "b", "x": "a"}}],
    [{"stack": "(pick-up a)"}, {"stack": "(stack a b)"}],
    [{"action": "pick-up", "args": ["red block"]}, {"action": "stack", "args": ["red block", "dark blue block"]}],
    [{"step": number, "action": step} for number, step in enumerate(STEPS, 1)],
    [{"step": 1, "action": "pick-up a"}, {"step": 2, "action": "stack a b"}],
    {"actions": [["pick-up", "a"], ["stack", "a", "b"]]},
    [[["pick-up", "a"]], [["stack", "a", "b"]]],
    {"plan": STEPS, "explanation": "It is held, (then) placed."},
    [f"{number}. {step}" for number, step in enumerate(STEPS, 1)],
    {"plan": "\n".join(STEPS)},
    {"1": STEPS[0], "2": STEPS[1]},
    {"schedule": [{"time": time, "actions": [step]} for time, step in enumerate(STEPS)]},
    ["pick up the red block", "stack the red block on top of the dark blue block"],
]
"""Ways to write one plan as JSON."""
LAYOUTS = [{}, {"separators": (",", ":")}, {"indent": 0}, {"indent": 1}, {"indent": 4}, {"indent": "\t"}]
AROUND_JSON = [
    "{}",
    "The plan is:\n\n```json\n{}\n```\n\nIt takes a.",
    "Try [x]. plan = {}\nDone.",
    "<think>[{{</think>{}",
]


@pytest.mark.parametrize("plan", IN_JSON, ids=range(len(IN_JSON)))
def test_a_plan_in_json_is_the_same_in_every_layout(plan):
    for around in AROUND_JSON:
        for layout in LAYOUTS:
            text = around.format(json.dumps(plan, **layout))
            assert read_actions(reader(), text) == FULL, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps([ACTIONS[0], {"action": "fly", "args": ["a"]}, ACTIONS[1]], indent=1), SHORT),  # not passed over
        (json.dumps([ACTIONS[0], {"action": "stack", "args": ["a", "#1"]}]), "(pick-up a) (stack a 1)"),
        (json.dumps({"first": ["(pick-up b)", "(stack b a)"], "final": STEPS}), FULL),
        (f"{json.dumps(ACTIONS[:1])} is wrong.\n\n{json.dumps(ACTIONS, indent=2)}", FULL),
        (json.dumps([{"step": 1, **ACTIONS[0]}]) + "\n\nThen:\n\n" + json.dumps([{"step": 2, **ACTIONS[1]}]), FULL),
        (json.dumps(ACTIONS, indent=2).replace("]", ",]"), FULL),  # commas before brackets
        (json.dumps(ACTIONS, indent=2)[:-1], FULL),  # cut off
        (json.dumps(ACTIONS).replace('"', "\u201c").replace("-", "\\_"), FULL),
        ('{"action": "(pick-up a)", "action": "(stack a b)"}', FULL),  # no key is lost
        (json.dumps({"name": "p", "objects": ["a", "b"]}), None),
        (json.dumps({"stack": "puts a on b", "pick-up": {"needs": "a hand"}}), None),  # no steps, but described
    ],
)
def test_json_loses_no_step(text, expected):
    assert (read_actions(reader(), text) or None) == expected


@pytest.mark.parametrize("text", WRITTEN, ids=range(len(WRITTEN)))
def test_last_reads_a_plan_as_models_write_it_and_strict_reading_does_not(text):
    assert " ".join(map(format_action, reader().read(text, "last").actions)) == FULL
    assert reader().read(text, "strict").error is PlanError.SYNTAX


@pytest.mark.parametrize(("text", "expected"), NOT_WRITTEN, ids=range(len(NOT_WRITTEN)))
def test_last_takes_no_attempt_and_no_action_in_a_sentence_for_the_plan(text, expected):
    read = reader().read(text, "last")
    assert (" ".join(map(format_action, read.actions)) or None) == expected
    assert (read.error is None) == (expected is not None)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_read_cuts_a_plan_out_by_each_rule(case):
    text, *expected = case
    for rule, wanted in zip(RULES, expected, strict=True):
        read = reader().read(text, rule)
        if wanted is None:
            assert read.error is PlanError.SYNTAX, rule
        else:
            assert (read.error, " ".join(map(format_action, read.actions))) == (None, wanted), rule
    if "pick up the" in text.lower():  # sentences, which only a configuration has
        assert reader(with_sentences=False).read(text, "last").error is PlanError.SYNTAX


FRAMES = ["{}", "Plan:\n{}", "```\n{}\n```", "1. {}"]


def read_actions(plan_reader, text, rule="last"):
    return " ".join(map(format_action, plan_reader.read(text, rule).actions))


@pytest.mark.parametrize("name", ["pick-up", "Pick_Up", "pickup", "PICK__UP"])
@pytest.mark.parametrize("argument", ["a", "red", "red block", "z"])
def test_a_list_of_steps_has_the_same_names_with_words_around_it_and_without(name, argument):
    text = f"({name} {argument}) (Stack a b)"
    expected = f"(pick-up {argument if argument == 'z' else 'a'}) (stack a b)"
    assert [read_actions(reader(), frame.format(text)) for frame in FRAMES] == [expected] * len(FRAMES)
    assert read_actions(reader(), text, "strict").startswith(f"({name.lower()} ")


def test_an_action_that_the_domain_spells_like_this_is_that_one():
    both = STACKS[:-1] + "(:action pickup :parameters (?x) :precondition (clear ?x) :effect (holding ?x)))"
    plan_reader = PlanReader(parse_problem(PROBLEM, parse_domain(both)))
    for frame in FRAMES:
        for text in ("(pick-up a) (pickup b)", "(pickup a) (pick-up b)"):
            assert read_actions(plan_reader, frame.format(text)) == text, frame


def test_a_text_that_is_a_plan_loses_no_step_and_no_argument():
    for text in ("(pick-up block a)", "(plan a) (pick-up a)"):
        assert read_actions(reader(), text) == text


PIECES = ["(pick-up a)", "(stack a b)", "x", "\n", " ", "```\n", "1.", ",", "pick up the red", "(", "[PLAN]"]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(PIECES)))
def test_rules_leave_plans_alone_and_find_no_step_that_is_not_there(parts):
    text = "".join(parts)
    strict = reader().read(text, "strict")
    read = reader().read(text, "last")
    assert read == strict or strict.error is not None
    assert read.actions.count(("stack", "a", "b")) <= text.count("(stack a b)")
    assert read.error is not None or len(read.actions) <= text.count("(") + text.count("pick up the red")


HOSTILE = [
    "1. (pick-up a)\n",
    "(pick-up a)\n(stack a b)\n\nWait:\n",
    "stack a ",
    "a: ",
    "**",
    "\\boxed{",
    "pick-up(a, ",
    "(",
    "(pick-up ",
    "```",
    "```\n",
    "pick up the ",
    "stack the red block on ",
    " ",
    "[plan]",
    "1 ",
    "[[",
    '["a",',
    '{"a":',
    '[{"',
    '{"action": "pick-up", "args": ["a"]},',
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_texts_are_read_to_their_end(piece):
    text = piece * (100_000 // len(piece))  # a rule that is quadratic in the length would take minutes
    for rule in RULES:
        assert reader().read(text, rule).error in (None, PlanError.SYNTAX)


LOADS = """(define (domain loads) (:predicates (truck ?t) (airplane ?t) (in ?p ?t) (box ?p))
  (:action load-truck :parameters (?p ?t) :precondition (and (truck ?t) (box ?p)) :effect (in ?p ?t))
  (:action load-airplane :parameters (?p ?t) :precondition (and (airplane ?t) (box ?p)) :effect (in ?p ?t)))"""


def test_objects_decide_where_two_actions_have_one_sentence():
    problem = parse_problem(
        "(define (problem p) (:domain loads) (:objects p0 t0 a0) (:init (truck t0) (airplane a0) (box p0))"
        " (:goal (in p0 t0)))",
        parse_domain(LOADS),
    )
    config = {
        "actions": {"load-truck": "load {} into {}", "load-airplane": "load {} into {}"},
        "encoded_objects": {"p": "package_{}", "t": "truck_{}", "a": "airplane_{}"},
    }
    sentences = Sentences(config, problem)
    text = "load package_0 into airplane_0\nload package_0 into truck_0\nload truck_0 into package_0\n"
    expected = [("load-airplane", "p0", "a0"), ("load-truck", "p0", "t0"), ("load-truck", "t0", "p0")]
    assert list(sentences.read(text)) == expected
    assert [action for _, action in sentences.find(text)] == expected


def test_find_takes_letters_that_are_alike_in_one_case_for_other_letters():
    problem = parse_problem(PROBLEM, parse_domain(STACKS))
    config = CONFIG | {"encoded_objects": {"a": "silver block", "b": "pink block"}}
    sentences = Sentences(config, problem)
    for name in ("\u017filver block", "p\u0131nk block"):
        assert list(sentences.find(f"pick up the {name}")) == []
    assert [action for _, action in sentences.find("PICK UP THE SILVER BLOCK")] == [("pick-up", "a")]
