"""Counts what XLA compiles during updates, and tells of updates that had to compile when all should be compiled."""

from collections.abc import Callable

import jax

from jaxppo.data import SEQUENCE_BUCKET

WARM_UP = 2
"""Updates of a process that compile in any case; the programs of later ones should be there."""

# Names of events of jax.monitoring, the same in jax 0.10 and 0.11.
# The first one comes with its seconds, also where a program was only
# read from the persistent cache, of which the second one tells.
_COMPILED = "/jax/core/compile/backend_compile_duration"
_READ = "/jax/compilation_cache/cache_hits"


class Compilations:
    """Listens to the compilations of this process while its block runs.

    Args:
        tell: prints a line.
    """

    def __init__(self, tell: Callable[[str], None]):
        self._tell = tell
        self._updates = 0
        self._reported_lengths: set[int] = set()
        self.begin()

    def __enter__(self) -> "Compilations":
        jax.monitoring.register_event_duration_secs_listener(self._note_duration)
        jax.monitoring.register_event_listener(self._note_event)
        return self

    def __exit__(self, *exception: object) -> None:
        jax.monitoring.unregister_event_listener(self._note_event)
        jax.monitoring.unregister_event_duration_listener(self._note_duration)

    def begin(self) -> None:
        """Begin an update: what was compiled before, for instance by an evaluation, is not counted."""
        self._requests = 0
        self._hits = 0
        self._seconds = 0.0

    def end(self, step: int, length: int) -> dict[str, float]:
        """Return the metrics of the update that ends here, and report programs that it compiled after the warm-up.

        Args:
            step: number of the update, from 1.
            length: tokens of its sequences, padding included.
        """
        compiled = self._requests - self._hits
        self._updates += 1
        if compiled and self._updates > WARM_UP and length not in self._reported_lengths:
            self._reported_lengths.add(length)
            self._tell(
                f"update {step}: compiled {compiled} program(s) in {self._seconds:.1f} s; its sequences have {length} "
                f"tokens (each length, rounded up to a multiple of {SEQUENCE_BUCKET}, compiles once, as do longer "
                "texts for a learned reward)"
            )
        return {"compile/count": compiled, "compile/s": self._seconds, "cache/hits": self._hits}

    def _note_duration(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            self._requests += 1
            self._seconds += duration_secs

    def _note_event(self, event: str, **_: str | int) -> None:
        if event == _READ:
            self._hits += 1
