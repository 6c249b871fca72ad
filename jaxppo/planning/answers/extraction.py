"""Cut a plan out of what a model wrote, by one of four rules.

All rules leave a text alone that is a plan already. `docs/judge_plans.md` has them in words.
"""

import re
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Literal, get_args

from jaxppo.errors import DataError
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import NAME_PATTERN, Action, ParsedPlan, Span, parse_plan_text

Rule = Literal["strict", "fenced", "longest", "last"]
RULES: tuple[Rule, ...] = get_args(Rule)

MOST_CHARACTERS = 1_000_000
"""Of an answer; a longer one is not looked at, and is no plan by any rule."""

_MARK = re.compile(r"^[ \t]*+`{3,}+[^\n`]*+$|\[plan(?: end)?\]|</?plan>", re.IGNORECASE | re.MULTILINE)
_STEP = re.compile(rf"\(\s*+({NAME_PATTERN}(?:\s++{NAME_PATTERN})*+)\s*+\)")
_BETWEEN = re.compile(r"[^\w()]*+(?:(?:step[ \t]*+)?\d++[^\w()]*+)?", re.IGNORECASE)
"""What may stand between two steps of a run: punctuation, and the number of the next."""

Steps = list[tuple[Span, Action]]


class PlanReader:
    """Reads answers to one problem.

    Args:
        operators: names of the domain's actions.
        sentences: how they are written in English, where that is known.
    """

    def __init__(self, operators: Collection[str], sentences: Sentences | None = None):
        self._operators, self._sentences = frozenset(operators), sentences

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
        if plan.error is None or self._sentences is None or "(" in text:
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
        """Take the longest run of steps; of equally long ones the last."""
        runs = self._runs(text)
        return max(reversed(runs), key=len) if runs else None

    def last(self, text: str) -> tuple[Action, ...] | None:
        """Take the last run of steps."""
        runs = self._runs(text)
        return runs[-1] if runs else None

    def _runs(self, text: str) -> list[tuple[Action, ...]]:
        """Find the steps between which no word stands."""
        steps = self._steps(text)
        if not steps:
            return []
        runs: list[list[Action]] = [[steps[0][1]]]
        for (before, _), (span, action) in pairwise(steps):
            if _BETWEEN.fullmatch(text, before[1], span[0]):
                runs[-1].append(action)
            else:
                runs.append([action])
        return [tuple(run) for run in runs]

    def _steps(self, text: str) -> Steps:
        """Find steps in parentheses, those that the domain knows before others; without any, sentences."""
        found = [(match.span(), tuple(match[1].lower().split())) for match in _STEP.finditer(text)]
        known = [step for step in found if step[1][0] in self._operators]
        if known or self._sentences is None:
            return known or found
        return list(self._sentences.find(text)) or found


_CUTS: Mapping[str, Callable[[PlanReader, str], tuple[Action, ...] | None]] = {
    "fenced": PlanReader.fenced,
    "longest": PlanReader.longest,
    "last": PlanReader.last,
}
