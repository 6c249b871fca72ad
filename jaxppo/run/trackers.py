"""Send the numbers and samples of a run to trackers, in addition to its JSON-lines logs: TensorBoard, Weights & Biases.

A tracker is a convenience: when one fails, the error is logged once, the tracker is disabled, and the run goes on.
"""

import importlib.util
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

from jaxppo.config.sources import flatten, plain_values
from jaxppo.errors import ConfigError, did_you_mean
from jaxppo.parallel import processes
from jaxppo.run.console import sanitize
from jaxppo.run.preemption import Preempted
from jaxppo.run.progress import format_value

TENSORBOARD_FOLDER = "tensorboard"
"""Folder in a run folder for TensorBoard's event files."""

WANDB_ID_FILE = "wandb/run_id"
"""File in a run folder with the id of the run at Weights & Biases, under which a resumed run continues."""

FLUSH_S = 10.0
"""Seconds for which points may wait in memory."""

MAX_SAMPLES = 8
"""Samples of an update that a tracker gets."""


Tracker: TypeAlias = "TensorBoard | WeightsAndBiases"
"""One destination of numbers; made before a run does anything, so that it can ask for a key or a login."""


class Trackers:
    """All trackers of a run; a context manager that opens and closes them.

    Only the first process of a run has any.

    Args:
        report_to: names of trackers, or "none".
        folder: run folder.
        config: configuration of the command, kept with the numbers; its secrets are left out.
        warn: called with the message about a tracker that failed.

    Raises:
        ConfigError: a tracker is unknown, or its package is missing.
    """

    def __init__(
        self, report_to: Sequence[str], folder: Path, config: Any, warn: Callable[[str], None]
    ):
        processes.on_first(lambda: _check(report_to))
        self._names = []
        if processes.is_first():
            self._names = [name for name in report_to if name != "none"]
        self._folder = folder
        self._config = plain_values(flatten(config))
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}

    def begin(self, start: int) -> None:
        """Open the trackers for the updates after `start`; later points of an earlier process are replaced."""
        self._tell(lambda tracker: tracker.begin(start))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the finite numbers of a record at an update."""
        finite = _finite(metrics)
        self._tell(lambda tracker: tracker.log(step, finite))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log some of the sample completions of an update."""
        columns = [column for column in rows[0] if column != "step"]
        safe_rows = []
        for row in rows[:MAX_SAMPLES]:
            safe_rows.append(
                {column: sanitize(format_value(row.get(column))) for column in columns}
            )
        self._tell(lambda tracker: tracker.samples(step, safe_rows))

    def flush(self) -> None:
        """Bring everything so far to where it survives this process.

        Called before a checkpoint: a run that resumes from it logs no earlier update again.
        """
        self._tell(lambda tracker: tracker.flush())

    def __enter__(self) -> "Trackers":
        for name in self._names:
            with self._failing(name):
                self._trackers[name] = TRACKERS[name].open(self._folder, self._config)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = kind is not None and not issubclass(kind, Preempted)
        self._tell(lambda tracker: tracker.close(failed=failed))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        # Of a copy: one that fails is removed meanwhile.
        for name, tracker in list(self._trackers.items()):
            with self._failing(name):
                call(tracker)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Log whatever error a tracker's library raises, and disable the tracker."""
        try:
            yield
        except Exception as error:
            # Whatever a library raises: hours of training do not end for a chart.
            self._trackers.pop(name, None)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._warn(
                f"report_to: {name} failed and gets nothing more of this run ({sanitize(reason, limit=300)}); the run "
                f"goes on, metrics.jsonl and samples.jsonl have everything. {TRACKERS[name].remedy}"
            )


def _check(report_to: Sequence[str]) -> None:
    """Raise a `ConfigError` for a tracker that is unknown or not installed."""
    for name in report_to:
        if name == "none":
            continue
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS)
            raise ConfigError(
                f"report_to: expected {', '.join(TRACKERS)} or none, got {name!r}{hint}"
            )
        package = TRACKERS[name].package
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"report_to: expected the package {package} for {name}, got none; "
                f"pip install 'jaxppo[{TRACKERS[name].extra}]' installs it"
            )


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record, without its step."""
    numbers = {}
    for name, value in metrics.items():
        if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a scalar of numpy or jax
            value = value.item()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = float(value)
    return numbers


class TensorBoard:
    """Write event files for `tensorboard --logdir`, in this thread, so that errors can be caught.

    (tensorboardX's `SummaryWriter` writes in a thread; when that fails, the caller waits for ever.)

    Args:
        folder: run folder.
        config: flat configuration without secrets.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        with _torch_hidden():
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2
        # Protobuf defines their classes at import, where no type checker sees them.
        events: Any = event_pb2
        summaries: Any = summary_pb2
        self._event = events.Event
        self._summary = summaries.Summary
        self._text = summary.text
        self._session_start = events.SessionLog(status=events.SessionLog.START)
        logs = folder / TENSORBOARD_FOLDER
        logs.mkdir(parents=True, exist_ok=True)
        # Without the suffix, a second file of the same second would replace the first.
        self._writer = EventsWriter(str(logs / "events"), f".{time.time_ns()}")
        self._config = config
        self._flushed_at = -math.inf

    def begin(self, start: int) -> None:
        """Have TensorBoard hide what earlier files hold beyond `start`, and show the configuration."""
        purge_from = start + 1 if start else 0
        # A killed process may have logged steps after its last checkpoint, which are taken again.
        self._writer.write_event(
            self._event(wall_time=time.time(), step=purge_from, session_log=self._session_start)
        )
        text = yaml.safe_dump(dict(self._config), sort_keys=False)
        self._add(
            start, self._text("config", "".join(f"    {line}\n" for line in text.splitlines()))
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to every scalar."""
        points = [
            self._summary.Value(tag=name, simple_value=number) for name, number in metrics.items()
        ]
        self._add(step, self._summary(value=points))

    def samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Do nothing: `samples.jsonl` and the report have them."""

    def flush(self) -> None:
        """Bring all points to the disk."""
        self._writer.flush()
        self._flushed_at = time.monotonic()

    def close(self, failed: bool) -> None:
        """Write the rest and close."""
        del failed
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self.flush()


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Keep tensorboardX from importing torch, which takes five seconds, for tensors that it never gets here."""
    if "torch" in sys.modules:
        yield
        return
    # An import of None raises ImportError, after which tensorboardX does without torch.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]


class WeightsAndBiases:
    """Log a run at Weights & Biases, set up by WANDB_PROJECT, WANDB_NAME, WANDB_MODE and its other variables.

    Terminal output, command line and code are not sent, as they may hold secrets.

    Args:
        folder: run folder; also holds wandb's own files.
        config: flat configuration without secrets.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]):
        import wandb

        self._wandb: Any = wandb
        self._folder = folder
        self._config = config
        self._run: Any = None
        if os.environ.get("WANDB_MODE", "online") == "online":
            wandb.login()  # may ask for a key: at once, not after the run has gone on for a while

    def begin(self, start: int) -> None:
        """Open the run, or reopen it."""
        folder = self._folder
        # The settings below keep terminal output, the command line and the code at home.
        settings = self._wandb.Settings(
            quiet=True,  # the result has just been printed
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
        )
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxppo"),
            name=os.environ.get("WANDB_NAME", folder.resolve().name),
            id=_wandb_id(folder),
            resume="allow" if start else None,
            dir=str(folder),
            config=dict(self._config),
            settings=settings,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to every metric; steps that wandb has from before a resume are the same and stay."""
        if step >= self._run.step:
            self._run.log(dict(metrics), step=step)

    def samples(self, step: int, rows: Sequence[Mapping[str, str]]) -> None:
        """Add a table."""
        if step >= self._run.step:
            table = self._wandb.Table(
                columns=list(rows[0]), data=[list(row.values()) for row in rows]
            )
            self._run.log({"samples": table}, step=step)

    def flush(self) -> None:
        """Do nothing: all points have gone to wandb's process."""

    def close(self, failed: bool) -> None:
        """Send the rest and finish the run."""
        if self._run is not None:
            self._run.finish(exit_code=int(failed))


def _wandb_id(folder: Path) -> str:
    """Return the id of the run, kept in its folder."""
    path = folder / WANDB_ID_FILE
    # Under the same id a resumed run goes on where it was, as one curve.
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    name = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")
    return name


class TrackerType(NamedTuple):
    """A type of tracker.

    Attributes:
        open: opens one for a run folder and a flat configuration without secrets.
        package: that it imports, and that is not among the requirements of jaxppo; None: none.
        extra: the extra of jaxppo that installs the package.
        remedy: what to do where it fails.
    """

    open: Callable[[Path, Mapping[str, Any]], Tracker]
    package: str | None
    extra: str | None
    remedy: str


TRACKERS: dict[str, TrackerType] = {
    "tensorboard": TrackerType(
        TensorBoard, None, None, "See that the run folder can be written to, then --resume"
    ),
    "wandb": TrackerType(
        WeightsAndBiases,
        "wandb",
        "tracking",
        "`wandb login`, or WANDB_MODE=offline to send it later with `wandb sync`, then --resume",
    ),
}
"""The trackers by their names in `--report_to`: a new one is a class and an entry."""
