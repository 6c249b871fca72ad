"""Generate on held-out rows, score the predictions, compare models: `python -m jaxppo.evaluate`.

In: a model or a file of plans, and rows. Out: rates with intervals. Nothing is imported here: plans are judged without
JAX.
"""

__all__ = [
    "answers",
    "comparison",
    "evaluator",
    "held_out",
    "intervals",
    "plan_metrics",
    "predictions",
    "printing",
    "sampled_plans",
]
