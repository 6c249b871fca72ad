"""Judge plans: the in-process validator, VAL, and the audit of one by the other.

In: a domain, a problem, a plan. Out: a `PlanVerdict`.
"""
