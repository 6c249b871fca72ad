"""Completions of planning rows for tests of the plan reward: a tower by hand, random answers, and tricks."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.planning import parse_action
from jaxppo.planning.domains import BLOCKSWORLD

PROBLEM_PDDL = """(define (problem tower) (:domain blocksworld) (:objects a b)
  (:init (ontable a) (on b a) (clear b) (handempty)) (:goal (and (ontable b) (on a b))))"""
SOLUTION = "unstack b a ; put-down b ; pick-up a ; stack a b"
REFERENCE = ["(unstack b a)", "(put-down b)", "(pick-up a)", "(stack a b)"]
COLUMNS = ("domain_pddl", "problem_pddl", "reference_plan", "prompt_style")
"""What the plan reward reads of a row."""


def columns_for(completions: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of the tower, once for each completion."""
    row = {
        "domain_pddl": BLOCKSWORLD.pddl,
        "problem_pddl": PROBLEM_PDDL,
        "reference_plan": REFERENCE,
        "prompt_style": "atoms",
    }
    return {name: [row[name]] * len(completions) for name in COLUMNS}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns that the plan reward reads, of these rows."""
    return {name: [row[name] for row in rows] for name in COLUMNS}


def random_completions(rows: Sequence[Mapping[str, Any]], rng: random.Random) -> list[str]:
    """Reference plans, cut, shuffled, repeated, or with a random action or junk: some valid, most wrong."""
    texts = []
    for row in rows:
        actions = [" ".join(parse_action(action)) for action in row["reference_plan"]]
        kind = rng.choice(["whole", "cut", "shuffled", "random", "longer", "junk"])
        names = rng.sample("abcdefghijklmnop", 2)
        if kind == "cut":
            actions = actions[: rng.randrange(len(actions))]
        elif kind == "shuffled":
            rng.shuffle(actions)
        elif kind == "random":
            actions[rng.randrange(len(actions))] = rng.choice(["stack {} {}", "pick-up {}", "put {}"]).format(*names)
        elif kind == "longer":
            actions = [*actions, *actions]
        texts.append(" ; ".join(actions) + (" ; )(" if kind == "junk" else ""))
    return texts


def enumerate_actions(row: Mapping[str, Any]) -> str:
    """All ground actions of a problem in blocksworld."""
    blocks = sorted({word for word in row["prompt"].split() if len(word) == 1 and word.isalpha()})
    actions = [f"{action} {block}" for action in ("pick-up", "put-down") for block in blocks]
    for action in ("stack", "unstack"):
        actions += [f"{action} {x} {y}" for x in blocks for y in blocks if x != y]
    return " ; ".join(actions)


TRICKS = {
    "junk tail": lambda x, row: f"{x} ; (junk)",
    "a word of junk": lambda x, row: f"{x} plan",
    "junk in front": lambda x, row: f"Plan: {x}",
    "junk in the middle": lambda x, row: x.replace(" ; ", " ; ) ; ", 1) if " ; " in x else f"{x} ; )",
    "itself again": lambda x, row: f"{x} ; {x}",
    "all ground actions after it": lambda x, row: f"{x} ; {enumerate_actions(row)}",
    "all ground actions before it": lambda x, row: f"{enumerate_actions(row)} ; {x}",
    "a copy of the prompt": lambda x, row: row["prompt"],
    "a copy of the prompt after it": lambda x, row: f"{x} {row['prompt']}",
    "a comment": lambda x, row: f"{x} ; ; a comment",
    "a comment on a line": lambda x, row: f"{x}\n; done",
    "brackets": lambda x, row: " ".join(f"({step.strip()})" for step in x.split(";")),
    "end of sequence spelled out": lambda x, row: f"{x} <eos> {x}",
    "upper case": lambda x, row: x.upper(),
    "spaces": lambda x, row: x.replace(" ", " \t\n "),
    "null bytes": lambda x, row: x.replace(" ", "\0"),
    "look-alike letters": lambda x, row: x.replace("a", "\u0430"),
    "a no-op step": lambda x, row: f"{x} ; noop",
    "one argument more": lambda x, row: f"{x} a",
}
"""From a completion and its row to one that must not earn more."""

WRAPPERS = {
    "a fence": "Here is my plan.\n```pddl\n{}\n```\nDone.",
    "tags": "<plan>{}</plan>",
    "marks": "[PLAN]\n{}\n[PLAN END]",
    "thinking": "<think>\nHm.\n</think>\n\n{}",
    "thinking and a fence": "Hm.</think>\n```\n{}\n```",
}
"""What may stand around a plan without changing its worth."""
