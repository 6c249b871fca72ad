"""One line on standard error and exit status 2 for bad input."""

import subprocess
import sys

import pytest

from jaxppo import cli
from jaxppo.config import TrainConfig
from jaxppo.config_sources import parse_cli
from jaxppo.errors import ConfigError, DataError, ModelError, PddlError, ValidatorError


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


def test_main_says_how_to_go_on_after_an_interrupt(capsys):
    code, _, err = outcome(raises(KeyboardInterrupt()), capsys)
    assert code == 130 and "--resume" in err


def test_main_returns_after_a_command_that_works(capsys):
    assert cli.main(lambda: None) is None
    assert capsys.readouterr() == ("", "")


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
