"""The same training run for two processes, for tests of how they agree and end."""

from pathlib import Path

from tests.commands import free_port, outputs_of, started
from tests.one_layer import ONE_LAYER

QUICK = ("--algorithm", "rloo", "--num_generations", "2", "--response_length", "16", "--num_sample_generations", "0")
QUICK += ("--eval_splits", "test")
"""Settings of a run of little work."""


def commands(folder: Path, *flags: str, each: tuple[tuple[str, ...], ...] = ((), ())) -> list[list[object]]:
    """The run of each; `each` adds flags of its own to one."""
    address = f"127.0.0.1:{free_port()}"
    run = ["-m", "jaxppo.train", "--preset", "tiny", "--sft_model_path", ONE_LAYER, "--output_dir", folder]
    return [[*run, *flags, "--distributed", f"{address},{number}/2", *own] for number, own in enumerate(each)]


SECOND = """
import os, runpy, sys
os.environ["SECOND"] = "yes"
{code}
sys.argv[0] = "{command}"
runpy.run_module("{command}", run_name="__main__", alter_sys=True)
"""


def second(first_and_second: list[list[object]], code: str = "") -> list[list[object]]:
    """The two commands, of which the second carries out some code before."""
    first, (_, command, *flags) = first_and_second
    return [first, ["-c", SECOND.format(code=code, command=command), *flags]]


def ends_of(both: list[list[object]], timeout_s: float = 400) -> tuple[list[int | None], list[str]]:
    """Run commands side by side, a device each: their exit statuses, and what they print."""
    with started(both, num_devices=1) as running:
        outputs = outputs_of(running, timeout_s)
    return [process.returncode for process in running], outputs
