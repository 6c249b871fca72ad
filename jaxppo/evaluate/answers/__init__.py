"""Answers of any models, from the files that others keep them in: read, judged, compared with what was recorded.

In: result files of PlanBench, tables, folders of plans. Out: judged rows for `plan_metrics`, and what is said beside.
"""
