"""What every command shares: one line for bad input, exit status 2, and compiled programs kept between runs."""

import contextlib
import errno
import gc
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
    "This is a bug: please report it with these lines, the command, and what `python -m jaxppo.doctor --json` prints."
)

_NO_ROOM = "free some, or name another output_dir; JAXPPO_CACHE moves the cache"
_NO_RIGHT = "change its permissions (chmod), or name another folder (JAXPPO_CACHE moves the cache)"
_OS_FIXES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.EFBIG: "allow larger files (ulimit -f), or name an output_dir on a disk that holds them",
    errno.ENOENT: "check the spelling of the path",
    errno.EMFILE: "allow more open files (ulimit -n)",
}
"""What to do about errors of the operating system."""

_OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""New objects after which Python looks for unreachable cycles among the youngest. Its own 700 to 2,000 are few where
tracing makes millions that stay: looking took a fifth of the interpreter's time until the first update."""


def main(command: Callable[[], Any], *, uses_jax: bool = True) -> None:
    """Run a command; a `JaxppoError` becomes one line on standard error and exit status 2.

    A run that is stopped by SIGTERM ends with status 0, by Ctrl-C with 130, and says how to go on.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Without torch, transformers would say that models are not available: those of jaxppo are.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    young, *older = gc.get_threshold()
    if young:  # 0: somebody has switched it off
        gc.set_threshold(max(young, _OBJECTS_BETWEEN_COLLECTIONS), *older)
    if not gc.get_freeze_count():
        gc.freeze()  # what was imported stays: full searches need not go through it
    try:
        if uses_jax:
            set_up_jax()
        command()
        if uses_jax:
            _wait_for_others()
    except JaxppoError as error:
        _refuse(str(error))
    except OSError as error:  # a path that cannot be read or written, a full disk
        got = f"{error.strerror or error}; {_OS_FIXES.get(error.errno or 0, 'look at what is there')}"
        _refuse(f"{error.filename or 'input/output'}: expected to be readable and writable, got: {got}")
    except Preempted as stop:
        _say(sanitize(str(stop)))
        if uses_jax:
            _wait_for_others()
        _exit(stop.exit_status)
    except Exception as error:
        if is_out_of_memory(error):
            _refuse(f"memory: expected enough for this run, got {first_line(error)[:300]}; {_MORE_MEMORY}")
        if uses_jax:
            if isinstance(error, RuntimeError | AssertionError):  # as JAX fails where it finds no device
                _check_backend()
            from jaxppo.parallel import processes

            processes.give_up(error)
        error.add_note(_BUG)
        raise
    except KeyboardInterrupt:
        print("interrupted; --resume with the same --output_dir goes on from the last checkpoint", file=sys.stderr)
        _exit(130)


def _exit(status: int) -> NoReturn:
    """End the process; at once where something still computes that nobody waits for."""
    if activity.is_left_behind():
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
        asked = os.environ.get("JAX_PLATFORMS") or "no JAX_PLATFORMS"
        fix = "unset JAX_PLATFORMS, or install what it needs (pip install 'jaxppo[gpu]' or 'jaxppo[tpu]')"
        got = f"{asked} ({first_line(error)[:300]})"
        _refuse(
            f"JAX_PLATFORMS: expected a platform that JAX can start, got {got}; {fix}; python -m jaxppo.doctor looks"
        )


def _say(line: str) -> None:
    """Print a line that must arrive: where the reader of the output has gone, on standard error."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            sys.stdout.flush()  # a buffer keeps what could not be written, and would write it a second time
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


def set_up_jax() -> None:
    """Products in full precision, and compiled programs kept in a folder that only this user can write: it is code."""
    import jax  # slow to import, and not every command needs it

    from jaxppo.parallel import platform

    platform.leave_out_absent()
    # GPUs and TPUs would multiply float32 matrices in fewer bits, and sampler and learner would disagree.
    jax.config.update("jax_default_matmul_precision", "highest")
    folder = cache_dir() / "xla"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
