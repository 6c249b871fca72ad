"""Answers of any models, in the files that others keep them in: read, their plans cut out, their problems found.

In: result files of PlanBench, tables, plans as files. Out: answers, problems, parsed plans; a line for what is wrong;
one plan explained.
"""

__all__ = ["answer", "columns", "extraction", "plan_check", "problems", "reading"]
