"""Everything that is drawn: the page of a run, of an evaluation, of a comparison: `python -m jaxppo.report`.

In: run folders and judged plans. Out: self-contained HTML, and one picture.
"""
