"""Stages that go on with fewer rows at once where the devices turn out to have no memory for all of them."""

from collections.abc import Callable
from typing import TypeVar

from jaxppo.errors import is_out_of_memory
from jaxppo.parallel import processes
from jaxppo.run import activity

T = TypeVar("T")


class Halving:
    """How many rows a stage computes at once: half of them for good, each time that the memory does not suffice.

    The estimate of `memory` comes first; this is for what it could not know, such as other programs on the device.

    Args:
        stage: its name, for the warning.
        on_halved: called each time, such as to compile programs for the new number.

    Attributes:
        divisor: the rows that were planned are divided by it.
    """

    def __init__(self, stage: str, on_halved: Callable[[], None] = lambda: None):
        self.stage = stage
        self._on_halved = on_halved
        self.divisor = 1

    def rows(self, planned: int) -> int:
        """Return how many rows to compute at once, at least 1."""
        return max(1, planned // self.divisor)

    def repeated(
        self,
        compute: Callable[[], T],
        rows: Callable[[], int],
        is_repeatable: Callable[[], bool] = lambda: True,
    ) -> T:
        """Return what `compute` does; it is called again with fewer rows where there is no memory for all of them.

        Args:
            compute: asks `rows` anew whenever it is called.
            rows: how many are computed at once on a device, by `self.rows`.
            is_repeatable: whether nothing is lost that `compute` needs.

        Raises:
            Exception: as `compute` does, also where there are no fewer rows, or where several processes compute
                together, of which only one may lack memory.
        """
        planned_rows: int | None = None  # before the first failure of this call
        while True:
            try:
                result = compute()
            except Exception as error:
                # Several processes must run the same program; one
                # that halved alone would leave the others waiting.
                if not (is_out_of_memory(error) and processes.is_alone() and is_repeatable()):
                    raise
                if planned_rows is None:
                    planned_rows = rows()
                if not self._halve(rows):
                    raise
            else:
                # One warning for all halvings of a call, once
                # it is clear which number of rows works.
                if planned_rows is not None:
                    activity.warn(
                        f"{self.stage}: no memory for {planned_rows} rows at once, so it goes on with {rows()}"
                    )
                return result

    def _halve(self, rows: Callable[[], int]) -> bool:
        """Take fewer rows, and return whether that is possible."""
        planned_rows = rows()
        divisor = self.divisor
        # Where rows are cut into equal parts, half of them may need more than one step.
        for _ in range(planned_rows.bit_length()):
            self.divisor *= 2
            if rows() < planned_rows:
                self._on_halved()
                return True
        self.divisor = divisor
        return False
