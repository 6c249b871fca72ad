"""What every command shares: one line for bad input, exit status 2, and compiled programs kept between runs."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from jaxppo.config.paths import cache_dir
from jaxppo.errors import JaxppoError, first_line, is_out_of_memory
from jaxppo.run import activity
from jaxppo.run.console import sanitize
from jaxppo.run.preemption import Preempted

_BUG = (
    "This is a bug: please report it with these lines, the command, "
    "and what `python -m jaxppo.doctor --json` prints."
)

SHOW_ORBAX = "JAXPPO_ORBAX_LOGS"
"""Environment variable; with any value all that orbax prints is shown."""

_OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""New objects after which Python looks for unreachable cycles among the youngest. Its own 700 to 2,000 are few where
tracing makes millions that stay: looking took a fifth of the interpreter's time until the first update."""


def main(command: Callable[[], Any], *, uses_jax: bool = True) -> None:
    """Run a command; a `JaxppoError` becomes one line on standard error and exit status 2.

    A run that is stopped by SIGTERM ends with status 0, by Ctrl-C with 130, and says how to go on.
    """
    # tokenizers would warn of each process that is forked after it has used its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Without torch, transformers would say that models are not available: those of jaxppo are.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    threshold, *older_thresholds = gc.get_threshold()
    if threshold:  # 0: somebody has switched it off
        gc.set_threshold(max(threshold, _OBJECTS_BETWEEN_COLLECTIONS), *older_thresholds)
    if not gc.get_freeze_count():
        gc.freeze()  # what was imported stays: full searches need not go through it
    try:
        if uses_jax:
            quiet_orbax()
            set_up_jax()
        command()
        if uses_jax:
            _wait_for_others()
    except JaxppoError as error:
        _refuse(str(error))
    except OSError as error:  # a path that cannot be read or written, a full disk
        path = error.filename or "input/output"
        _refuse(f"{path}: expected to be readable and writable, got: {error.strerror or error}")
    except Preempted as stop:
        _print_surely(sanitize(str(stop)))
        if uses_jax:
            _wait_for_others()
        _exit(stop.exit_status)
    except Exception as error:
        if is_out_of_memory(error):
            # JAX raises its own kind of error, which only its text tells from others.
            _refuse(
                f"memory: expected enough for this run, got {first_line(error)[:300]}; {_MORE_MEMORY}"
            )
        # One line for a machine without a device; a traceback,
        # which is to be reported, for everything else.
        if uses_jax:
            # As JAX fails where it finds no device
            if isinstance(error, RuntimeError | AssertionError):
                _check_backend()
            from jaxppo.parallel import processes

            processes.give_up(error)
        error.add_note(_BUG)
        raise
    except KeyboardInterrupt:
        print(
            "interrupted; --resume with the same --output_dir goes on from the last checkpoint",
            file=sys.stderr,
        )
        _exit(130)


def _exit(status: int) -> NoReturn:
    """End the process; at once where something still computes that nobody waits for."""
    if activity.has_abandoned_work():
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


_MORE_MEMORY = (
    "a smaller --batch_size (evaluate: --eval_batch_size), --dtype bfloat16 and --parallel fsdp take less, and where "
    "the command has them --gradient_accumulation_steps, --gradient_checkpointing, --use_peft and a smaller "
    "--local_rollout_forward_batch_size; with --dry_run, train prints the budget"
)


def _check_backend() -> None:
    """End with one line where JAX has no device to compute on, which whatever asks for one fails by."""
    import jax

    try:
        jax.devices()
    except Exception as error:  # JAX's own kinds, and failed assertions
        platforms = os.environ.get("JAX_PLATFORMS") or "no JAX_PLATFORMS"
        fix = "unset JAX_PLATFORMS, or install what it needs (pip install 'jaxppo[gpu]' or 'jaxppo[tpu]')"
        _refuse(
            f"JAX_PLATFORMS: expected a platform that JAX can start, got {platforms} ({first_line(error)[:300]}); "
            f"{fix}; python -m jaxppo.doctor looks"
        )


def _print_surely(line: str) -> None:
    """Print a line that must arrive: where the reader of the output has gone, on standard error."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # The buffer still holds the line and would print
        # it a second time: flush it to where nobody reads.
        with open(os.devnull, "wb") as null_file:
            os.dup2(null_file.fileno(), 1)
            sys.stdout.flush()
        os.dup2(2, 1)
        print(line, file=sys.stderr, flush=True)


def _refuse(message: str) -> NoReturn:
    message = sanitize(message)
    print(f"error: {message}", file=sys.stderr, flush=True)
    if "jax" in sys.modules:
        from jaxppo.parallel import processes

        processes.end_with(2, message)
    _exit(2)


def _wait_for_others() -> None:
    """One process may have more to write than the others, whose end would be taken for a failure."""
    from jaxppo.parallel import processes

    processes.wait_for_all()


def quiet_orbax() -> None:
    """Leave out what orbax prints until the end of this process, unless `JAXPPO_ORBAX_LOGS` is set.

    Where a checkpoint cannot be written, one line of ours says why. Orbax would print a traceback from each thread that
    the failure reaches, through the loggers of absl and asyncio; and for each write that fails after the first, asyncio
    reports a closed event loop where no logger sees it.
    """
    if os.environ.get(SHOW_ORBAX):
        return
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_not_from_orbax)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _report_unless_loop_closed


def _is_not_from_orbax(record: logging.LogRecord) -> bool:
    # asyncio logs for others: the message names the coroutine that failed.
    source = record.getMessage() if record.name == "asyncio" else record.pathname
    return "orbax" not in source


def _report_unless_loop_closed(event: Any) -> None:
    if str(event.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(event)


def set_up_jax() -> None:
    """Products in full precision, and compiled programs kept in a folder that only this user can write: it is code."""
    import jax  # slow to import, and not every command needs it

    from jaxppo.parallel import platform

    platform.leave_out_absent()
    # GPUs and TPUs would multiply float32 matrices in
    # fewer bits, and sampler and learner would disagree.
    jax.config.update("jax_default_matmul_precision", "highest")
    folder = cache_dir() / "xla"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Also programs that compile quickly: there are many of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
