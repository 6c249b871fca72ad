"""Signals are noted within a `Preemption`, raised at the next check, and nothing of it is left behind."""

import os
import signal
import threading

import pytest

from jaxppo.run import activity, cli, preemption
from jaxppo.run.preemption import Preempted, Preemption

RESUME = "python -m jaxppo.train --resume --output_dir runs/a"


@pytest.fixture(autouse=True)
def handlers():
    """Handlers of this module's own around every test; each must find them again at its end."""
    seen = []
    mine = {signum: lambda number, _: seen.append(number) for signum in (signal.SIGTERM, signal.SIGINT)}
    before = {signum: signal.signal(signum, handler) for signum, handler in mine.items()}
    yield seen
    left = {signum: signal.signal(signum, handler) for signum, handler in before.items()}
    assert left == mine


def send(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(("signum", "name", "status"), [(signal.SIGTERM, "SIGTERM", 0), (signal.SIGINT, "Ctrl-C", 130)])
def test_a_signal_is_noted_and_raised_at_the_next_check(handlers, signum, name, status):
    with pytest.raises(Preempted, match=rf"{name}.*: {RESUME}$") as stop, Preemption(RESUME) as request:
        request.check()  # nothing happens without a signal
        preemption.check()
        assert not request.is_requested and preemption.notice() is None
        send(signum)
        assert request.is_requested and preemption.notice() is not None
        preemption.check()
    assert stop.value.exit_status == status
    assert handlers == []
    preemption.check()  # nobody asks any more
    assert preemption.notice() is None
    send(signum)
    assert handlers == [signum]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_what_it_did_before_and_leaving_the_block_raises(handlers, second):
    with pytest.raises(Preempted), Preemption(RESUME):
        send(signal.SIGTERM)
        send(second)
        assert handlers == [second]
    with pytest.raises(KeyError), Preemption(RESUME):  # which no signal hides
        send(signal.SIGTERM)
        raise KeyError("x")


def test_ignored_signals_stay_ignored():
    """A shell starts background jobs with Ctrl-C ignored."""
    mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Preemption(RESUME) as request:
        send(signal.SIGINT)
        assert not request.is_requested
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.signal(signal.SIGINT, mine) is signal.SIG_IGN


def test_what_computes_is_left_where_the_run_is_to_stop_unless_a_step_would_be_lost(handlers, monkeypatch):
    may_end, lines = threading.Event(), []
    monkeypatch.setattr(activity, "GRACE_S", 0.0)
    monkeypatch.setattr(activity, "warn", lines.append)
    with pytest.raises(Preempted), Preemption(RESUME):
        activity.run_interruptibly(lambda: (send(signal.SIGTERM), may_end.wait()), takes_state=True)
    assert activity.has_abandoned_work()

    def step():
        send(signal.SIGTERM)
        while not lines:
            may_end.wait(0.01)
        return 1

    with pytest.raises(Preempted), Preemption(RESUME):
        preemption.set_unsaved(True)
        assert activity.run_interruptibly(step, takes_state=True) == 1  # on another thread: the first one is busy
    assert len(lines) == 1
    may_end.set()

    def fail():
        raise TimeoutError("of the computation")

    with Preemption(RESUME), pytest.raises(TimeoutError, match="of the computation"):
        activity.run_interruptibly(fail)


def test_outside_the_main_thread_nothing_happens():
    failed = []

    def run():
        before = signal.getsignal(signal.SIGTERM)
        with Preemption(RESUME) as request:
            preemption.check()
            failed.append(request.is_requested or signal.getsignal(signal.SIGTERM) is not before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failed == [False]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_command_that_is_stopped_says_how_to_go_on(capsys, signum, status):
    def command():
        with Preemption(RESUME):
            send(signum)
            preemption.check()

    with pytest.raises(SystemExit) as stop:
        cli.main(command)
    assert stop.value.code == status
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and out.endswith(f": {RESUME}\n") and err == ""
