"""Draw the pages of a run, of an evaluation and of a comparison: `python -m jaxppo.report`.

In: run folders and judged plans. Out: self-contained HTML, and one picture.
"""

__all__ = ["answers_page", "comparison", "picture", "plan_page", "run_page"]
