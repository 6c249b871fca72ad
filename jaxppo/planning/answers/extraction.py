"""Cut a plan out of what a model wrote, by one of four rules.

All rules leave a text alone that is a plan already. `docs/judge_plans.md` has them in words.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, get_args

from jaxppo.errors import DataError
from jaxppo.planning.answers.steps import StepFinder, plain
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import Action, ParsedPlan, parse_plan_text
from jaxppo.planning.language.task import Problem

Rule = Literal["strict", "fenced", "longest", "last"]
RULES: tuple[Rule, ...] = get_args(Rule)

MOST_CHARACTERS = 1_000_000
"""Of an answer; a longer one is not looked at, and is no plan by any rule."""

_FENCE = r"^[ \t]*+`{3,}+[^\n`]*+$"
_TAGS = r"\[plan(?:[ _]end)?\]|</?(?:plan|answer|final_answer)>"
_MARK = re.compile(rf"{_FENCE}|{_TAGS}", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(_TAGS, re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\s*+\{")
_THOUGHT = re.compile(r"</(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_NEXT_PROBLEM = "[STATEMENT]"
"""What PlanBench's prompts begin a problem with: a model that goes on after its plan writes the next one."""


class PlanReader:
    """Reads answers to one problem.

    Args:
        problem: its actions and objects.
        sentences: how they are written in English, where that is known.
    """

    def __init__(self, problem: Problem, sentences: Sentences | None = None):
        self._sentences, self._finder = sentences, StepFinder(problem, sentences)

    def read(self, text: str, rule: Rule) -> ParsedPlan:
        """Read an answer by a rule; the plan that is read strictly where the rule finds none."""
        plan = self._strictly(text)
        if plan.error is None or rule == "strict":
            return plan
        actions = _CUTS[rule](self, text)
        return plan if actions is None else ParsedPlan(actions)

    def _strictly(self, text: str) -> ParsedPlan:
        """Read a text that is steps, or sentences a line, and nothing else."""
        plan = parse_plan_text(text)
        if self._sentences is None:
            return plan
        if plan.error is None:
            return replace(plan, actions=tuple(map(self._sentences.in_pddl, plan.actions)))
        if "(" in text:
            return plan
        try:
            return ParsedPlan(tuple(self._sentences.read(text)))
        except DataError:
            return plan

    def fenced(self, text: str) -> tuple[Action, ...] | None:
        """Take what stands between two marks: of several pieces, the last that is a plan by itself."""
        pieces = _MARK.split(text)
        inside = pieces[1::2][::-1]
        for piece in [*inside, *(pieces[:1] if len(pieces) == 2 else ())]:
            plan = self._strictly(piece)
            if plan.error is None and plan.actions:
                return plan.actions
        return None

    def longest(self, text: str) -> tuple[Action, ...] | None:
        """Take the longest list of steps; of equally long ones the last."""
        lists = self._lists(text)
        return max(reversed(lists), key=len) if lists else None

    def last(self, text: str) -> tuple[Action, ...] | None:
        """Take the last list of steps."""
        lists = self._lists(text)
        return lists[-1] if lists else None

    def _lists(self, text: str) -> list[tuple[Action, ...]]:
        """Find lists of steps behind the thinking: in what is marked as the plan where steps are, else anywhere."""
        text = _THOUGHT.split(text)[-1]
        for piece in [*self._marked(text), text]:
            lists = self._finder.lists(plain(piece))
            if lists:
                return lists
        return []

    def _marked(self, text: str) -> list[str]:
        """Return the last piece between two tags, or in a box; and what is before a closing tag alone."""
        answer, *_ = text.strip().split(_NEXT_PROBLEM)
        pieces = _TAG.split(answer)
        inside = pieces[1::2] if len(pieces) != 2 else [piece for piece in pieces if piece.strip()][:1]
        return [piece for piece in (_boxed(text), *inside[::-1], answer) if piece.strip()]


def _boxed(text: str) -> str:
    r"""Return what stands in the last `\\boxed{}`; nothing where there is none."""
    depth, piece = 1, _BOXED.split(text)[1:][-1:]
    for end, character in enumerate(piece[0] if piece else ""):
        depth += (character == "{") - (character == "}")
        if not depth:
            return piece[0][:end]
    return "".join(piece)


_CUTS: Mapping[str, Callable[[PlanReader, str], tuple[Action, ...] | None]] = {
    "fenced": PlanReader.fenced,
    "longest": PlanReader.longest,
    "last": PlanReader.last,
}
