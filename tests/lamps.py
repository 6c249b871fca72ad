"""A tiny domain whose verdicts are seen at a glance, and rows of it; not the package's own generator."""

from typing import Any

from jaxppo.evaluate.predictions import JudgedRow, Prediction, judge_rows

DOMAIN = """(define (domain lamps) (:predicates (have ?x) (lit ?x))
  (:action light :parameters (?x) :precondition (have ?x) :effect (lit ?x)))"""
PROBLEM = """(define (problem p) (:domain lamps) (:objects a b c) (:init (have a) (have b))
  (:goal (and (lit a) (lit b))))"""
REFERENCE = ["(light a)", "(light b)"]
COST_DOMAIN = """(define (domain shop) (:requirements :action-costs) (:predicates (own ?x)) (:functions (total-cost))
  (:action buy :parameters (?x) :precondition () :effect (and (own ?x) (increase (total-cost) 3)))
  (:action steal :parameters (?x) :precondition () :effect (and (own ?x) (increase (total-cost) 10))))"""
COST_PROBLEM = """(define (problem p) (:domain shop) (:objects a) (:init (= (total-cost) 0)) (:goal (own a))
  (:metric minimize (total-cost)))"""

# Text to its outcome: error, and the measures in the order of MEASURES.
MEASURES = ("prefix", "goal", "lcs", "lccs", "lcs_by_reference", "lccs_by_reference", "quality")
BY_HAND: dict[str, tuple[str, tuple[float, ...]]] = {
    "light a ; light b": ("valid", (1, 1, 1, 1, 1, 1, 1)),
    "LIGHT B ; light a": ("valid", (1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1)),
    "light a ; light b ; light a": ("valid", (1, 1, 2 / 3, 2 / 3, 1, 1, 2 / 3)),
    "light a": ("goal_not_reached", (1, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 0)),
    "": ("goal_not_reached", (1, 0, 0, 0, 0, 0, 0)),
    "light a ; light c ; light b": ("precondition", (1 / 3, 1 / 2, 2 / 3, 1 / 3, 1, 1 / 2, 0)),
    "light a ; fly b": ("unknown_action", (1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 0)),
    "light a b": ("wrong_arity", (0, 0, 0, 0, 0, 0, 0)),
    "light a ; light b ; light": ("wrong_arity", (2 / 3, 1, 2 / 3, 2 / 3, 1, 1, 0)),
    "light zz": ("unknown_object", (0, 0, 0, 0, 0, 0, 0)),
    "light a ; light b )": ("syntax", (0, 0, 0, 0, 0, 0, 0)),
    "<script>alert(1)</script>": ("syntax", (0, 0, 0, 0, 0, 0, 0)),
}


def lamp_row(name: str = "p", **columns: Any) -> dict[str, Any]:
    return {
        "id": name,
        "domain": "lamps",
        "split": "test",
        "prompt": "",
        "completion": "light a ; light b",
        "reference_plan": REFERENCE,
        "domain_pddl": DOMAIN,
        "problem_pddl": PROBLEM,
        "plan_length": 2,
        "n_objects": 3,
        "prompt_style": "atoms",
        "planner": "hand",
    } | columns


def judged(*texts: str, **columns: Any) -> list[JudgedRow]:
    """A row for each text."""
    rows = [lamp_row(f"p{i}", **columns) for i in range(len(texts))]
    return judge_rows(rows, [[Prediction(text)] for text in texts])


def several(*groups: list[str], seeds: int = 1, **columns: Any) -> list[JudgedRow]:
    """A row for each list of texts, which are dealt to the seeds in equal parts."""
    rows = [lamp_row(f"p{i}", **columns) for i in range(len(groups))]
    predictions = [[Prediction(text, seed=i * seeds // len(group)) for i, text in enumerate(group)] for group in groups]
    return judge_rows(rows, predictions)
