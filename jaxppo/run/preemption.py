"""Stopping on request: SIGTERM, as clusters send it before they take a machine away, and Ctrl-C."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Preempted(Exception):
    """A run ends early because it was asked to; it is in order, and can be resumed.

    Args:
        resume: the command that goes on with it.
        signum: which signal asked.
    """

    def __init__(self, resume: str, signum: int):
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        super().__init__(f"stopped by {name}; to go on from the last checkpoint: {resume}")
        self.exit_status = 130 if signum == signal.SIGINT else 0


class Preemption:
    """While its block runs, a first SIGTERM or Ctrl-C is only noted, and `check` raises `Preempted`.

    A second signal does what it did before the block, so Ctrl-C twice ends the command at once. Leaving the block in
    order after a signal raises `Preempted` too: no signal is lost between the last `check` and the end. Signals that
    were ignored stay ignored, and outside the main thread, where Python has no signal handlers, nothing happens at all.

    Args:
        resume: the command that goes on with the run, for the message.
        agree: turns the signals noted by all processes of the run (0: none) into one that all of them act on.
        on_signal: called when a signal was noted, within its handler.
    """

    def __init__(
        self,
        resume: str,
        agree: Callable[[int], int] = lambda signum: signum,
        on_signal: Callable[[], None] = lambda: None,
    ):
        self._resume = resume
        self._agree = agree
        self._on_signal = on_signal
        self._signum: int | None = None
        self._earlier_handlers: dict[int, Any] = {}

    @property
    def is_requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self._signum is not None

    def check(self) -> None:
        """Do nothing, or stop.

        Raises:
            Preempted: the run was asked to stop.
        """
        # Of several processes one may have got the signal:
        # all stop at the same step, or none could save.
        signum = self._agree(self._signum or 0)
        if signum:
            raise Preempted(self._resume, signum)

    def __enter__(self) -> "Preemption":
        # Python sets handlers in the main thread alone; notebooks and tests may run elsewhere.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGINT):
                # None: not installed from Python
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    self._earlier_handlers[signum] = signal.signal(signum, self._note)
        _active.append(self)
        set_unsaved(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        _active.remove(self)
        self._restore()
        # An error of the block is raised as it is: it says more than the signal.
        if kind is None:
            self.check()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self._signum = signum
        # Before anything that may take time: from here on a second signal ends the process.
        self._restore()
        self._on_signal()

    def _restore(self) -> None:
        while self._earlier_handlers:
            signum, handler = self._earlier_handlers.popitem()
            signal.signal(signum, handler)


_is_unsaved = False


def set_unsaved(is_unsaved: bool) -> None:
    """Set whether steps are done that no checkpoint has."""
    global _is_unsaved
    _is_unsaved = is_unsaved


def is_work_unsaved() -> bool:
    """Return whether steps are done that no checkpoint has."""
    return _is_unsaved


_active: list[Preemption] = []
"""Those whose blocks are running: one, or none, as signals belong to the whole process."""


def is_watched() -> bool:
    """Return whether a signal would be noted, and `check` would act on it."""
    return bool(_active)


def check() -> None:
    """Stop here if the run was asked to; for places between the stages of an update, where the state can be saved.

    Raises:
        Preempted: the run was asked to stop, and is within a `Preemption`.
    """
    for preemption in _active:
        preemption.check()


def notice() -> str | None:
    """Return the message for somebody who has asked to stop and waits for it; None where nobody has."""
    if not any(preemption.is_requested for preemption in _active):
        return None
    return "stopping: the last update is being saved (a second Ctrl-C ends at once, without saving)"
