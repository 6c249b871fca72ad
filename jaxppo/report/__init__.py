"""Draw the pages of a run, of an evaluation and of a comparison: `python -m jaxppo.report`.

In: run folders and judged plans. Out: self-contained HTML.
"""

__all__ = ["answers_page", "comparison", "plan_page", "run_page"]
