"""Cut a plan out of what a model wrote, by one of two rules.

Of a text that is a plan already, both rules read every step. `docs/judge_plans.md` has them in words.
"""

import re
from dataclasses import replace
from typing import Literal, get_args

from jaxppo.errors import DataError
from jaxppo.planning.answers.steps import StepFinder
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import Action, ParsedPlan, parse_plan_text
from jaxppo.planning.language.task import Problem

Rule = Literal["strict", "last"]
RULES: tuple[Rule, ...] = get_args(Rule)

# Possessive quantifiers, here and in `steps`: an answer of any length must not take
# longer than linear time.
_TAG = re.compile(r"\[plan(?:[ _]end)?\]|</?(?:plan|answer|final_answer)>", re.IGNORECASE)
# With two levels of braces inside. A box that has more, or is never closed, as in an answer that was cut off, ends with
# the text.
_BOXED = re.compile(r"\\boxed\s*+\{((?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+(?=\})|[\s\S]*+)")
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
        self._sentences = sentences
        self._finder = StepFinder(problem, sentences)

    def read(self, text: str, rule: Rule) -> ParsedPlan:
        """Read an answer by a rule; the plan that is read strictly where the rule finds none."""
        plan = self._read_whole(text, rule)
        if plan.error is None or rule == "strict":
            return plan
        # Of several lists the last: what a model corrects, it corrects below.
        lists = self._step_lists(text)
        return ParsedPlan(lists[-1]) if lists else plan

    def _read_whole(self, text: str, rule: Rule) -> ParsedPlan:
        """Read a text that is steps, or sentences a line, and nothing else."""
        plan = parse_plan_text(text)
        if plan.error is None:
            actions = plan.actions
            # By `last`, a list of steps has the same names with words around it and without.
            # Before objects, as those of a sentence are told apart by what their action takes.
            if rule != "strict":
                actions = [(self._finder.domain_name(name), *rest) for name, *rest in actions]
            if self._sentences is not None:
                actions = map(self._sentences.in_pddl, actions)
            return replace(plan, actions=tuple(actions))
        if self._sentences is None:
            return plan
        # No sentence has parentheses, so these steps are PDDL with an error.
        if "(" in text:
            return plan
        try:
            return ParsedPlan(tuple(self._sentences.read(text)))
        except DataError:
            return plan

    def _step_lists(self, text: str) -> list[tuple[Action, ...]]:
        """Find lists of steps after the thinking: in what is marked as the plan where steps are, else anywhere."""
        text = _THOUGHT.split(text)[-1]
        for piece in [*_marked_pieces(text), text]:
            lists = self._finder.lists(piece)
            if lists:
                return lists
        return []


def _marked_pieces(text: str) -> list[str]:
    """Return what may be marked as the plan, the best first: a box, pieces between tags, all but the next problem."""
    answer = text.strip().split(_NEXT_PROBLEM)[0]
    pieces = _TAG.split(answer)
    inside = pieces[1::2]
    if len(pieces) == 2:
        # One tag alone, which closes or opens: what is before it, unless that is nothing.
        inside = [pieces[0] if pieces[0].strip() else pieces[1]]
    boxed = _BOXED.findall(text)[-1:]
    return [piece for piece in (*boxed, *reversed(inside), answer) if piece.strip()]
