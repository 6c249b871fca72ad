"""The folder of a run: claimed once, resumed only under the configuration it was made with."""

import datetime
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxppo.config import RunConfig
from jaxppo.config.old_settings import (
    translate_old_settings,
    with_default_parts,
)
from jaxppo.config.paths import is_partial, write_atomically
from jaxppo.config.reading import parse_json
from jaxppo.config.redact import redact_command
from jaxppo.config.sources import (
    CALL_ONLY,
    CONFIG_FILE,
    flatten,
    plain_values,
    read_yaml,
    write_yaml,
)
from jaxppo.errors import ConfigError, DataError, did_you_mean
from jaxppo.parallel import platform, processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.run import activity
from jaxppo.run.console import Console
from jaxppo.run.lock import LOCK_FILE, folder_lock
from jaxppo.run.preemption import Preemption
from jaxppo.run.trackers import Trackers

EVAL_FILE = "eval.json"
"""Name of the results in a run folder."""
METRICS_FILE = "metrics.jsonl"
SAMPLES_FILE = "samples.jsonl"
"""Names of the logs in a run folder."""
EVAL_SAMPLES_FILE = "eval_samples.json"
"""Name of the file with some answers to held-out prompts, before and after training."""


_NOT_OF_A_RESUME = ("output_dir", "preset", "config", "resume", "dry_run", "target", "profile")
"""Settings of one call that the command to go on with a run does not repeat."""


@dataclass(kw_only=True)
class Run:
    """One start of a command: its settings, its folder, its view, its devices.

    Args:
        command: name of the command.
        config: its configuration, with `run`, and `loop` where it trains.
        folder: run folder.
        console: view; default: as configured.
        evals: content of `eval.json`, of an earlier start that is resumed.
    """

    command: str
    config: Any
    folder: Path
    console: Console = None  # type: ignore[assignment]
    evals: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.console is None:
            self.console = Console(self.config.run.quiet, processes.output())
        activity.show_on(self.console)

    @cached_property
    def parallel(self) -> DataParallel:
        """The devices of all processes; a batch that they cannot share is a `ConfigError`."""
        parallel = DataParallel(self.config.run.parallel, mesh=self.config.run.mesh)
        self.config.check_devices(parallel.row_shards)
        return parallel

    @cached_property
    def trackers(self) -> Trackers:
        """Where metrics go beside the logs; a tracker that is not installed is a `ConfigError`."""
        return Trackers(self.config.loop.report_to, self.folder, self.config, self.console.warn)

    def is_finished(self) -> bool:
        """Return whether nothing is left to resume, and say so: the run has all evaluations that its command makes."""
        finished = bool(self.evals) and ("after" in self.evals or "before" not in self.evals)
        if not finished:
            return False
        self.console.print(f"{self.folder} is finished: nothing to resume")
        if self.config.run.allow_changes:
            saved = read_yaml(self.folder / CONFIG_FILE)
            changed = changed_settings(saved, plain_values(flatten(self.config)), self.config)
            if changed:
                names = ", ".join(changed)
                self.console.warn(f"allow_changes: {self.folder} is finished: not applied: {names}")
        return True

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder, see `claim`, and hold its lock while the block runs.

        No other process works on it meanwhile, and SIGTERM or Ctrl-C end the block at the next `preemption.check`.
        """
        with ExitStack() as stack:
            # One process claims the folder and holds its lock for all of them.
            def claim_and_lock() -> None:
                claim(self.folder, self.config)
                stack.enter_context(folder_lock(self.folder))

            processes.on_first(claim_and_lock)
            # Within the lock: a signal leads to a checkpoint,
            # and that must be written before others may write.
            with Preemption(self.resume_command, processes.largest, self.console.stop_noted):
                yield

    def keep_settings(self) -> None:
        """Write what `allow_changes` names into `config.yaml`, once the run to resume has accepted it.

        One that goes on past its end is no longer finished, which `eval.json` says.
        """
        if (
            self.config.run.allow_changes
            and processes.is_first()
            and (self.folder / CONFIG_FILE).exists()
        ):
            write_yaml(self.config, self.folder / CONFIG_FILE, command_line(), Path.cwd())
            self.write_evals(self.evals)

    def keep_samples(self, moment: str, samples: dict[str, Any]) -> None:
        """Keep some of the answers of an evaluation in `eval_samples.json`, in the first process."""
        if processes.is_first():
            path = self.folder / EVAL_SAMPLES_FILE
            write_json(path, read_json(path) | {moment: samples})

    def write_evals(self, evals: dict[str, Any]) -> None:
        """Write `eval.json`, in the first process."""
        if processes.is_first():
            write_json(self.folder / EVAL_FILE, evals)

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run; it names those settings that the run's folder does not keep."""
        settings = flatten(self.config)
        defaults = flatten(type(self.config)())
        words = ["python", "-m", f"jaxppo.{self.command}", "--resume"]
        words += ["--output_dir", str(self.folder)]
        for name in CALL_ONLY:
            value = settings.get(name)
            if name in _NOT_OF_A_RESUME or value == defaults.get(name):
                continue
            words.append(f"--{name}")
            if isinstance(value, tuple):
                words += map(str, value)
            elif value is not True:
                words.append(str(value))
        return redact_command(words)

    def meta(self, config: Any, models: dict[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint says of its run.

        Args:
            config: settings, where the command has completed them.
            models: from `hf.export.models_meta`.
        """
        return {"config": plain_values(flatten(config)), "models": models, "seed": config.run.seed}


def begin(command: str, config: Any) -> Run:
    """Join the processes of a run and find its folder; warn where `--resume` finds no run there.

    Args:
        command: name of the command.
        config: its configuration, with `run`.

    Raises:
        ConfigError: as for `processes.join`, `processes.check_same`, `processes.check_same_packages` and `check`.
    """
    # Both before JAX looks for devices.
    if config.run.target is not None:
        platform.compile_only()
    processes.join(config.run)
    processes.check_same_packages()
    processes.check_same(flatten(config))

    def find() -> tuple[Path, bool, dict[str, Any]]:
        folder = default_folder(command, config.run)
        if not check(folder, config):
            return folder, False, {}
        # Loading takes a while: who works on the folder already is named before it.
        with nullcontext() if config.run.dry_run else folder_lock(folder):
            evals = read_json(folder / EVAL_FILE)
        saved = read_yaml(folder / CONFIG_FILE)
        changed = changed_settings(saved, plain_values(flatten(config)), config)
        if "total_episodes" in changed or "num_train_epochs" in changed:
            # What was measured after the last step is measured again, after the new one.
            evals = {
                name: evals[name]
                for name in ("headline_split", "before")
                if "before" in evals and name in evals
            }
        return folder, True, evals

    folder, resumed, evals = processes.on_first(find)
    run = Run(command=command, config=config, folder=folder, evals=evals)
    if config.run.resume and not resumed:
        run.console.warn(f"output_dir: {folder} holds no run to resume; a new one begins")
    return run


def default_folder(command: str, run: RunConfig) -> Path:
    """`--output_dir`, or a new folder named by command, preset and time."""
    if run.output_dir is not None:
        return Path(run.output_dir)
    # With microseconds, so that runs that start together get folders of their own.
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("outputs") / f"{command}-{run.preset or 'default'}-{time}"


def check(folder: Path, config: Any) -> bool:
    """Return whether the folder holds the run to resume (True) or is free for a new one (False); nothing is written.

    Raises:
        ConfigError: it holds another run, or something else, or the run to resume has another configuration.
    """
    if (folder / CONFIG_FILE).exists():
        if not config.run.resume:
            raise ConfigError(
                f"output_dir: expected a new folder, or --resume, but {folder} holds a run already"
            )
        saved = read_yaml(folder / CONFIG_FILE)
        check_settings(
            saved, plain_values(flatten(config)), config, f"the run to resume in {folder}"
        )
        return True
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir: expected a folder, but {folder} is a file")
    # A process that was killed while it claimed the folder may
    # have left the configuration half-written, and its lock.
    entries = (
        [path for path in folder.iterdir() if path.name != LOCK_FILE] if folder.exists() else []
    )
    if not all(is_partial(path, CONFIG_FILE) for path in entries):
        raise ConfigError(
            f"output_dir: expected a new or empty folder, got {folder} that holds other files; name another"
        )
    return False


def claim(folder: Path, config: Any) -> None:
    """Make the run folder with its configuration, unless it is the run to resume; of two claims at once, one wins.

    Raises:
        ConfigError: as for `check`, or the folder cannot be made.
    """
    if check(folder, config):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(folder):
            # Another process may have claimed it since.
            if not check(folder, config):
                write_yaml(config, folder / CONFIG_FILE, command_line(), Path.cwd())
    except OSError as error:
        raise ConfigError(
            f"output_dir: expected a folder to write to, got {folder} ({error.strerror})"
        ) from None


def command_line() -> str:
    """Return the command of this process, without secrets."""
    file = Path(sys.argv[0])
    name = file.stem
    if name == "__main__":  # the command is a package, such as jaxppo.planning
        name = file.parent.name
    return redact_command(["python", "-m", f"jaxppo.{name}", *sys.argv[1:]])


def check_settings(
    saved: Mapping[str, Any], current: Mapping[str, Any], config: Any, source: str
) -> None:
    """Check that a run goes on with its settings, but for those of one call and those in `allow_changes`.

    Args:
        saved: as the run had them, as from `plain_values`; a setting newer than the run had its default.
        current: as the run has them today.
        config: configuration of the command.
        source: where the saved ones are from, for the message.

    Raises:
        ConfigError: other settings differ, and the message names each; or `allow_changes` names what is no setting.
    """
    # A misspelled name would allow nothing, and the refusal below would not say why.
    for name in config.run.allow_changes:
        if name not in current and name not in saved:
            raise ConfigError(
                f"allow_changes: expected names of settings, got {name!r}{did_you_mean(name, current)}"
            )
    differences = []
    for name, value in changed_settings(saved, current, config).items():
        if name not in config.run.allow_changes:
            setting = f"{name} {current[name]!r}" if name in current else f"no {name}"
            differences.append(f"{setting} (was {value!r})")
    if differences:
        fix = "leave these settings as they were, or name a new output_dir, or these in --allow_changes"
        raise ConfigError(f"config: expected that of {source}, got {', '.join(differences)}; {fix}")


def changed_settings(
    saved: Mapping[str, Any], current: Mapping[str, Any], config: Any
) -> dict[str, Any]:
    """Return the settings of a run, not of one call, that have another value today: {name: saved value}.

    Args:
        saved: see `check_settings`.
        current: see `check_settings`.
        config: see `check_settings`.
    """
    # By the names of today, and with defaults for settings
    # that are newer than the run: neither is a change.
    saved = with_default_parts(
        plain_values(flatten(type(config)())) | translate_old_settings(saved, current)
    )
    changed = {}
    for name, value in saved.items():
        if name in CALL_ONLY or (name in current and current[name] == value):
            continue
        changed[name] = value
    return changed


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that is never seen half-written."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} where the file does not exist yet.

    Raises:
        DataError: the file is not a JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, DataError) as error:
        raise DataError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
