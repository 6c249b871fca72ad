"""One line on standard error and exit status 2 for bad input."""

import errno
import gc
import os
import subprocess
import sys

import pytest

from jaxppo.errors import ConfigError, DataError, PddlError
from jaxppo.run import cli
from tests.commands import one_line, run_command


def outcome(command, capsys):
    """Exit status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as stop:
        cli.main(command)
    return stop.value.code, *capsys.readouterr()


def raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (ConfigError("seed: bad"), "seed: bad"),
        (DataError("row \x1b[31m1\x1b]0;x\x07:\nsecond\r\nline [bold]"), "[bold]"),
        (PddlError("domain.pddl", 3, "bad"), "domain.pddl:3: bad"),
        (MemoryError(), "--gradient_accumulation_steps"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore"), "--gradient_accumulation_steps"),
        (OSError(errno.ENOSPC, "why", "/runs/a"), "/runs/a: expected to be readable and writable, got: why"),
    ],
)
def test_main_prints_one_line_without_terminal_codes_and_exits_with_2(error, named, capsys):
    code, out, err = outcome(raises(error), capsys)
    line = one_line(code, err)
    assert line.startswith("error: ") and named in line and out == ""
    assert not {"\x1b", "\x07", "\r"} & set(line)


def test_main_lets_a_programming_error_through_and_says_how_to_go_on_after_an_interrupt(capsys):
    with pytest.raises(ZeroDivisionError) as error:
        cli.main(lambda: 1 / 0)
    assert "python -m jaxppo.doctor" in error.value.__notes__[0]
    code, _, err = outcome(raises(KeyboardInterrupt()), capsys)
    assert code == 130 and "--resume" in err


def test_a_command_is_refused_where_jax_finds_no_platform():
    command = [sys.executable, "-c", "import jax; from jaxppo.run import cli; cli.main(jax.devices)"]
    environment = os.environ | {"JAX_PLATFORMS": "tpu,cuda"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: JAX_PLATFORMS: ") and "tpu,cuda (Unable to initialize backend " in line
    assert "Traceback" not in done.stderr


READER_GONE = """
import os, signal, sys
from jaxppo.run import cli, preemption
from jaxppo.run.console import Console
console = Console()
def command():
    with preemption.Preemption("python -m jaxppo.train --resume") as asked:
        print("begun", flush=True)
        sys.stdin.read()
        if sys.argv[1] != "prints":
            os.kill(os.getpid(), signal.SIGINT)
        if sys.argv[1] != "nothing":
            console.print("x" * 100_000)
            console.print("more")
        if sys.argv[1] == "prints":
            print("as a reward function may", flush=True)
        asked.check()
cli.main(command, uses_jax=False)
"""


@pytest.mark.parametrize(
    ("prints", "status", "last"),
    [("lines", 130, " --resume\n"), ("nothing", 130, " --resume\n"), ("prints", 0, "as a reward function may\n")],
)
def test_a_run_goes_on_without_its_reader_and_says_how_to_resume(prints, status, last):
    """As with `| tee run.log`, which the same Ctrl-C ends, or `| head -1`."""
    command = [sys.executable, "-c", READER_GONE, prints]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # as where nobody has set it
    with subprocess.Popen(command, **pipes, text=True, env=buffered) as process:
        assert process.stdout.readline() == "begun\n"
        process.stdout.close()
        process.stdin.close()
        err = process.stderr.read()
    assert process.returncode == status
    assert err.endswith(last) and err.count("\n") == 1


@pytest.mark.parametrize(("before", "within"), [(700, 10_000), (50_000, 50_000), (0, 0)])
def test_main_collects_garbage_more_rarely_never_more_often(before, within):
    usual = gc.get_threshold()
    try:
        gc.set_threshold(before, 7, 5)
        found = []
        cli.main(lambda: found.append(gc.get_threshold()), uses_jax=False)
        assert found == [(within, 7, 5)]
    finally:
        gc.set_threshold(*usual)


@pytest.mark.parametrize(
    ("command", "flags", "named"),
    [
        ("evaluate", ["--eval_batch_size", "0"], "eval_batch_size"),
        ("train", ["--no_such_flag", "1"], "no_such_flag"),
        ("report", ["none"], "none"),
    ],
)
def test_a_command_refuses_in_one_line_and_writes_nothing(command, flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command(command, *flags)
    assert named in one_line(status, err) and out == ""
    assert list(tmp_path.iterdir()) == []
