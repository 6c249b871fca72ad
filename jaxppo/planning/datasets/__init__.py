"""Data sets of problems with plans: build, import, split, inspect.

In: generators or files. Out: folders of rows with a card.
"""

__all__ = ["build", "config", "files", "importing", "inspect", "rows"]
