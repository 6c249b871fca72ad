"""Long work that is no step of a loop: shown while it goes on, and left where the run is asked to stop."""

import contextvars
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from jaxppo.run import preemption

if TYPE_CHECKING:
    from jaxppo.run.console import Console

T = TypeVar("T")

GRACE_S = 3.0
"""Seconds that a computation may take to its end once the run is asked to stop."""
CHECK_S = 0.2
"""Seconds after which a waiting thread checks again whether the run is asked to stop."""


class Activity:
    """Work that is going on.

    Args:
        title: what it is, such as "tokenizing".
        total: how much is to be done; None: unknown.
        unit: what is counted, in the plural.

    Attributes:
        done: how much is done.
    """

    def __init__(self, title: str, total: int | None = None, unit: str = "rows"):
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0
        self._start_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since it began."""
        return time.perf_counter() - self._start_s

    @property
    def left_s(self) -> float | None:
        """Return the seconds left at the speed so far; None where that is unknown."""
        if self.total is None or not 0 < self.done < self.total:
            return None
        return self.elapsed_s / self.done * (self.total - self.done)


_console: "weakref.ref[Console] | None" = None


def show_on(console: "Console") -> None:
    """Show activities on this console, as long as it exists."""
    global _console
    _console = weakref.ref(console)


def _current() -> "Console | None":
    return None if _console is None else _console()


_have_compiled: set[str] = set()
"""Titles of the work whose programs this process has compiled already."""


@contextmanager
def show(
    title: str, total: int | None = None, unit: str = "rows", *, compiles: bool = False
) -> Iterator[Activity]:
    """Show what the block does, should it take long; the block keeps `done` of the activity up to date.

    Args:
        title: see `Activity`.
        total: see `Activity`.
        unit: see `Activity`.
        compiles: the first block of this title also compiles, which may take longer than all the rest, and says so.
    """
    has_note = compiles and title not in _have_compiled
    activity = Activity(f"{title} (compiling first)" if has_note else title, total, unit)
    console = _current()
    with nullcontext() if console is None else console.shown(activity):  # None: without a run
        yield activity
    if compiles:
        _have_compiled.add(title)


def track(title: str, items: Sequence[T], unit: str = "rows") -> Iterator[T]:
    """Yield all of the items, and show how many are done."""
    with show(title, len(items), unit) as activity:
        for item in items:
            yield item
            activity.done += 1


def warn(text: str) -> None:
    """Warn on the console of the run, if there is one."""
    console = _current()
    if console is not None:
        console.warn(text)


# --- waiting for the devices


class _Worker:
    """A thread that computes one task after the other, and stays: to start one while devices are busy takes long."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.is_busy = False
        # A daemon: the end of the process does not wait for it.
        threading.Thread(target=self._work, name="attended", daemon=True).start()

    def begin(self, compute: Callable[[], T]) -> "Future[T]":
        """Compute something, within the context of the caller."""
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def task() -> None:
            try:
                result = context.run(compute)
            except BaseException as error:
                # Free before the result is given: whoever
                # waits for it may begin the next task at once.
                self.is_busy = False
                future.set_exception(error)
            else:
                self.is_busy = False
                future.set_result(result)

        self.is_busy = True
        self._tasks.put(task)
        return future

    def _work(self) -> None:
        while True:
            self._tasks.get()()


_workers: list[_Worker] = []
"""The last one takes the next task; the others compute what nobody waits for any more."""


def run_interruptibly(compute: Callable[[], T], *, takes_state: bool = False) -> T:
    """Return what `compute` does, in a thread of its own, and stop meanwhile where the run is asked to.

    Nothing interrupts a compiler or the devices, but the main thread need not wait for them: it goes on to save what is
    done, and the process ends without them. Where several processes compute together, none can leave alone.

    Args:
        compute: compiles and computes; it must not need the main thread.
        takes_state: whether it takes over the memory of a state, which is lost if nobody waits for the result. So it
            is waited for, unless the state is saved.

    Raises:
        Preempted: the run was asked to stop.
    """
    from jaxppo.parallel import processes  # imports JAX, without which commands of planning do

    # Signals reach the main thread alone: any other thread may as well compute by itself.
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and preemption.is_watched() and processes.is_alone()):
        return compute()
    # A busy worker has been left with a computation that cannot
    # be interrupted: the next task needs another thread.
    if not _workers or _workers[-1].is_busy:
        _workers.append(_Worker())
    future = _workers[-1].begin(compute)
    requested_at = None
    has_warned = False
    while True:
        try:
            return future.result(timeout=CHECK_S)
        except TimeoutError:
            if future.done():  # the error is that of `compute`
                raise
        if preemption.notice() is None:
            continue
        # Most computations end within the grace: the run then
        # stops between two stages, with nothing left behind.
        requested_at = requested_at or time.perf_counter()
        if time.perf_counter() - requested_at < GRACE_S:
            continue
        if not (takes_state and preemption.is_work_unsaved()):
            preemption.check()
        elif not has_warned:
            has_warned = True
            warn(
                "stopping: this step cannot be interrupted without losing it; it is finished, and then saved"
            )


def has_abandoned_work() -> bool:
    """Return whether something still computes that nobody waits for: Python cannot end in order meanwhile."""
    return any(worker.is_busy for worker in _workers)
