"""PDDL and plans as data: domains, problems and plans are read here, and what a verdict is stands here.

In: text. Out: `Domain`, `Problem`, actions, `PlanVerdict`.
"""

__all__ = [
    "axioms",
    "conditions",
    "effects",
    "numeric",
    "overlap",
    "parse",
    "plans",
    "scope",
    "sexpr",
    "task",
    "temporal",
    "verdicts",
]
