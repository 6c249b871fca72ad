"""Data sets of problems with plans: build, split, inspect.

In: generators. Out: folders of rows with a card.
"""

__all__ = [
    "build",
    "config",
    "files",
    "folder",
    "inspect",
    "renamed_rows",
    "rows",
    "runs",
    "stream",
    "stream_ahead",
    "terminal",
]
