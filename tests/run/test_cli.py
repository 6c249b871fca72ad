"""One line on standard error and exit status 2 for bad input."""

import gc
import os
import subprocess
import sys

import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError, DataError, ModelError, PddlError, ValidatorError
from jaxppo.run import cli


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
    "error",
    [
        ConfigError("seed: bad"),
        DataError("rows.jsonl:3: bad"),
        ModelError("config.json: bad"),
        PddlError("domain.pddl", 3, "bad"),
        ValidatorError("VAL: bad"),
    ],
)
def test_main_prints_one_line_and_exits_with_2(error, capsys):
    assert outcome(raises(error), capsys) == (2, "", f"error: {error}\n")


def test_main_prints_one_line_without_terminal_codes_whatever_the_message_holds(capsys):
    code, _, shown = outcome(raises(DataError("row \x1b[31m1\x1b]0;x\x07:\nsecond\r\nline [bold]")), capsys)
    assert code == 2
    assert shown.count("\n") == 1 and shown.startswith("error: row ") and "[bold]" in shown
    assert not {"\x1b", "\x07", "\r"} & set(shown)


@pytest.mark.parametrize("args", [["--no_such_flag", "1"], ["--kl_coef", "x"], ["--preset", "huge"], ["--resume"]])
def test_main_turns_bad_flags_into_one_line(args, capsys):
    code, out, err = outcome(lambda: parse_cli(TrainConfig, "train", args), capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and args[0].lstrip("-") in err


def test_main_lets_a_programming_error_through_with_its_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.main(lambda: 1 / 0)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes\nmore lines")]
)
def test_main_says_what_takes_less_memory(error, capsys):
    code, _, err = outcome(raises(error), capsys)
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("error: memory: expected enough") and "--gradient_accumulation_steps" in err


def test_a_platform_that_jax_cannot_start_is_one_line(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "tpu,cuda", "JAXPPO_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "jaxppo.train", "--preset", "tiny", "--dry_run"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: JAX_PLATFORMS: expected a platform that JAX can start, got tpu,cuda (")
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


RESUME = "stopped by Ctrl-C; to go on from the last checkpoint: python -m jaxppo.train --resume\n"


@pytest.mark.parametrize(
    ("said", "status", "last"),
    [("lines", 130, RESUME), ("nothing", 130, RESUME), ("prints", 0, "as a reward function may\n")],
)
def test_a_run_goes_on_without_its_reader_and_says_how_to_resume(said, status, last):
    """As with `| tee run.log`, which the same Ctrl-C ends, or `| head -1`."""
    command = [sys.executable, "-c", READER_GONE, said]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.stdout.close()
        process.stdin.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (status, last)


def test_main_says_how_to_go_on_after_an_interrupt(capsys):
    code, _, err = outcome(raises(KeyboardInterrupt()), capsys)
    assert code == 130 and "--resume" in err


def test_main_returns_after_a_command_that_works(capsys):
    assert cli.main(lambda: None) is None
    assert capsys.readouterr() == ("", "")


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


def test_command_exits_with_2_and_one_line_and_writes_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "jaxppo.evaluate", "--output_dir", tmp_path / "run", "--eval_batch_size", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: eval_batch_size: expected a number above 0, got 0\n"
    assert not (tmp_path / "run").exists()
