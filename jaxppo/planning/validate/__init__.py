"""Judge plans: the in-process validator, VAL, and the audit of one by the other.

In: a domain, a problem, a plan. Out: a `PlanVerdict`, or a `Trace` of the states.
"""

__all__ = ["api", "audit", "ground", "grounding", "trace", "val", "validator"]
