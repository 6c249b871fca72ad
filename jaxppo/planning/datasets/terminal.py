"""What the commands of planning need of a terminal; `jaxppo.run.console.Console` is one.

Protocols, since planning does not depend on `jaxppo.run`.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol


class ProgressBar(Protocol):
    """What `Terminal.progress` gives to the loop."""

    def update(self, step: int, **fields: Any) -> None:
        """Say that `step` of all are done; `fields` are shown as `name value`."""
        ...


class Terminal(Protocol):
    """Where a command says what it does."""

    def print(self, text: str = "") -> None:
        """Print text, unless quiet."""
        ...

    def result(self, text: str) -> None:
        """Print text, also when quiet."""
        ...

    def warn(self, text: str) -> None:
        """Print a warning, also when quiet."""
        ...

    def progress(
        self, total: int, description: str, start: int = 0, unit: str = "update"
    ) -> AbstractContextManager[ProgressBar]:
        """Show a bar while the block runs, from `start` to `total`; `unit` is what is counted."""
        ...
