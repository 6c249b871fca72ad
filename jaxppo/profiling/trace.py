"""A trace of some updates, for Perfetto, TensorBoard and XProf.

`--profile N` writes to `<output_dir>/profile/`: `perfetto_trace.json.gz` (open it at https://ui.perfetto.dev), and
under `plugins/` what TensorBoard and XProf read.
"""

import os
from pathlib import Path

import jax

from jaxppo.errors import ConfigError
from jaxppo.profiling.compilation import WARM_UP
from jaxppo.run.console import Console


def check_updates(updates: int, remaining: int) -> None:
    """Raise a `ConfigError` where a run has too few updates left for a profile.

    Args:
        updates: to be traced.
        remaining: updates that this process will carry out.
    """
    limit = max(0, remaining - WARM_UP)
    if updates > limit:
        raise ConfigError(
            f"profile: expected at most {limit} ({remaining} updates are left, and the first {WARM_UP} compile), "
            f"got {updates}"
        )


class Profile:
    """Traces updates of a run: those after the first `WARM_UP` of this process.

    A context manager: leaving it ends a trace that is still going on.

    Args:
        updates: how many to trace; 0 for none.
        start: updates done before.
        last: updates of the whole run.
        folder: run folder.
        console: for the line that says where it is.

    Raises:
        ConfigError: too few updates are left.
    """

    def __init__(self, updates: int, start: int, last: int, folder: Path, console: Console):
        check_updates(updates, last - start)
        self._first = start + WARM_UP
        self._end = self._first + updates
        self._folder = folder / "profile"
        self._console = console
        self._tracing = False

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._tracing:
            jax.profiler.stop_trace()

    def begin(self, step: int) -> None:
        """Update `step` (from 0) begins."""
        if step == self._first < self._end:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # frames of Python would crowd the operations out
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )
            self._tracing = True

    def end(self, step: int) -> None:
        """Update `step` has ended; after the last one that is traced, say where it is."""
        if not self._tracing or step + 1 < self._end:
            return
        jax.profiler.stop_trace()
        self._tracing = False
        trace = self._folder / "perfetto_trace.json.gz"
        # JAX has a folder for each trace, named by its time.
        written = self._folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        os.replace(max(written, key=lambda path: path.stat().st_mtime), trace)
        updates = f"updates {self._first + 1} to {self._end}"
        self._console.print(f"trace of {updates} in {trace}, for https://ui.perfetto.dev")
