"""Answers from files: judged, compared with what was recorded, measured, printed.

In: answers of `planning/answers`. Out: judged rows for `plan_metrics`, and what `eval.json` holds.
"""
