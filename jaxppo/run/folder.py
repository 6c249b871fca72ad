"""The folder of a run: claimed once, resumed only under the configuration it was made with."""

import datetime
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxppo.config import DataConfig, RunConfig
from jaxppo.config.gone import completed, renewed
from jaxppo.config.paths import is_partial, write_atomically
from jaxppo.config.reading import parse_json
from jaxppo.config.redact import redact_command
from jaxppo.config.sources import CALL_ONLY, CONFIG_FILE, flatten, plain_values, read_yaml, write_yaml
from jaxppo.errors import ConfigError, DataError, did_you_mean
from jaxppo.parallel import platform, processes
from jaxppo.parallel.devices import DataParallel
from jaxppo.run import activity
from jaxppo.run.console import Console
from jaxppo.run.lock import FolderLock
from jaxppo.run.preemption import Preemption
from jaxppo.run.trackers import Trackers

EVAL_FILE = "eval.json"
"""Name of the results in a run folder."""
METRICS_FILE, SAMPLES_FILE = "metrics.jsonl", "samples.jsonl"
"""Names of the logs in a run folder."""
EVAL_SAMPLES_FILE = "eval_samples.json"
"""Name of the file with some answers to held-out prompts, before and after training."""


_INTERVALS = ("validity", "executability", "ended", "reward")
"""Measures of an evaluation with an interval that are looked at when `eval.json` is read."""
_HEADLINES = {"mean_reward", "validity", "accuracy", "loss"}
"""Measures of which every result has one: numbers, or with an interval."""
_BOUNDS = {"low", "high", "n"}


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
        """Return whether nothing is left to resume, and say so: all evaluations that the command makes are there."""
        finished = bool(self.evals) and ("after" in self.evals or "before" not in self.evals)
        if finished:
            self.console.print(f"{self.folder} is finished: nothing to resume")
        return finished

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder, see `claim`, and hold it while the block runs.

        Nobody else works on it meanwhile, and SIGTERM or Ctrl-C end the block at the next `preemption.check`.
        """
        lock = FolderLock(self.folder)

        def claim_and_lock() -> None:
            claim(self.folder, self.config, self.config.run)
            lock.acquire()

        processes.on_first(claim_and_lock)
        try:
            with Preemption(self.resume_command, processes.largest, self.console.stop_noted):
                yield
        finally:
            lock.release()

    def keep_settings(self) -> None:
        """Let `config.yaml` say what `allow_changes` let in, once nothing of the run to resume speaks against it."""
        if self.config.run.allow_changes and processes.is_first() and (self.folder / CONFIG_FILE).exists():
            write_yaml(self.config, self.folder / CONFIG_FILE, command_line())

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
        """The command that goes on with this run."""
        return resume_command(self.command, self.folder, self.config)

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
    if config.run.target is not None:
        platform.compile_only()
    processes.join(config.run)
    processes.check_same_packages()
    processes.check_same(flatten(config))

    def find() -> tuple[Path, bool, dict[str, Any], list[str]]:
        folder = default_folder(command, config.run)
        if not check(folder, config, config.run):
            return folder, False, {}, []
        with nullcontext() if config.run.dry_run else FolderLock(folder):  # to meet who works on it before all else
            evals, warnings = _evaluations(folder, trains=hasattr(config, "loop"))
        if _has_another_length(folder, config):
            # What was measured after the last step is measured again, after the new one.
            evals = {name: evals[name] for name in ("headline_split", "before") if "before" in evals and name in evals}
        return folder, True, evals, warnings

    folder, resumed, evals, warnings = processes.on_first(find)
    run = Run(command=command, config=config, folder=folder, evals=evals)
    for warning in warnings:
        run.console.warn(warning)
    if config.run.resume and not resumed:
        run.console.warn(f"output_dir: {folder} holds no run to resume; a new one begins")
    return run


def default_folder(command: str, run: RunConfig) -> Path:
    """`--output_dir`, or a new folder named by command, preset and time."""
    if run.output_dir is not None:
        return Path(run.output_dir)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    return Path("outputs") / f"{command}-{run.preset or 'default'}-{now}"


def check(folder: Path, config: Any, run: RunConfig) -> bool:
    """Return whether the folder holds the run to resume (True) or is free for a new one (False); nothing is written.

    Raises:
        ConfigError: it holds another run, or something else, or the run to resume has another configuration.
    """
    if (folder / CONFIG_FILE).exists():
        if not run.resume:
            raise ConfigError(f"output_dir: expected a new folder, or --resume, but {folder} holds a run already")
        _check_same(folder, config)
        return True
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir: expected a folder, but {folder} is a file")
    # A process killed while it claimed the folder may have left the configuration half-written.
    if folder.exists() and any(not is_partial(entry, CONFIG_FILE) for entry in folder.iterdir()):
        raise ConfigError(
            f"output_dir: expected a new or empty folder, got {folder} that holds other files; name another"
        )
    return False


def _evaluations(folder: Path, trains: bool) -> tuple[dict[str, Any], list[str]]:
    """Read `eval.json` of a run to resume; it and `eval_samples.json` are set aside where they are damaged.

    What `evaluate` writes has another form than the results of a command that trains.

    Returns:
        Its content, {} where there is none that can be used; warnings.
    """
    evals, warnings = {}, []
    for name, read in ((EVAL_SAMPLES_FILE, _read_samples), (EVAL_FILE, read_evals if trains else read_json)):
        path = folder / name
        try:
            evals = read(path)
        except DataError as error:
            aside = path.with_name(f"{name}.damaged")
            path.replace(aside)
            warnings.append(f"{error}; it is now {aside.name}, and what it held is measured again where that can be")
            evals = {}
    return evals, warnings


def read_evals(path: Path) -> dict[str, Any]:
    """Read an `eval.json`: {split: {measure: value}}, as `before` and `after` or alone; {} where there is none yet.

    Raises:
        DataError: the file holds something else.
    """
    evals = read_json(path)
    moments = [evals[moment] for moment in ("before", "after") if moment in evals] or [evals]
    for results in moments:
        if not isinstance(results, dict) or not all(map(_is_result, results.values())):
            raise DataError(f"{path}: expected the results of evaluations, {{split: {{measure: value}}}}, got others")
    if not isinstance(evals.get("headline_split", ""), str | None):
        raise DataError(f"{path}: expected the name of a split as headline_split, got {evals['headline_split']!r:.60}")
    return evals


def _read_samples(path: Path) -> dict[str, Any]:
    """Read an `eval_samples.json`: {moment: {split: samples}}; raise a `DataError` for something else."""
    samples = read_json(path)
    for of_moment in samples.values():
        if not isinstance(of_moment, dict) or not all(isinstance(rows, list) for rows in of_moment.values()):
            raise DataError(f"{path}: expected {{moment: {{split: [sample, ...]}}}}, got another shape of JSON")
    return samples


def _is_result(measures: Any) -> bool:
    """Return whether a value can be what is measured on one split; its most important numbers are looked at."""
    if not isinstance(measures, dict) or not measures.keys() & _HEADLINES:
        return False
    measured = {name: value for name, value in measures.items() if value is not None}
    headlines = [value for name, value in measured.items() if name in _HEADLINES and isinstance(value, dict)]
    return all(map(_is_interval, [*headlines, *(measured[name] for name in _INTERVALS if name in measured)]))


def _is_interval(value: Any) -> bool:
    """Return whether a value is a rate or mean with its interval: numbers, or None where nothing was measured."""
    if not isinstance(value, dict) or not value.keys() & {"rate", "mean"} or not value.keys() >= _BOUNDS:
        return False
    looked_at = [value[name] for name in ("rate", "mean", *_BOUNDS) if name in value]
    return all(isinstance(number, int | float | None) for number in looked_at)


def claim(folder: Path, config: Any, run: RunConfig) -> None:
    """Make the run folder with its configuration, unless it is the run to resume; of two claims at once, one wins.

    Raises:
        ConfigError: as for `check`, or the folder cannot be made.
    """
    if check(folder, config, run):
        return
    partial = folder / f".{CONFIG_FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_yaml(config, partial, command_line())
        try:
            _link_or_copy(partial, folder / CONFIG_FILE)
        finally:
            partial.unlink()
    except FileExistsError:
        raise ConfigError(
            f"output_dir: expected a new folder, got {folder} that another run has just claimed"
        ) from None
    except OSError as error:
        raise ConfigError(f"output_dir: expected a folder to write to, got {folder} ({error.strerror})") from None


def _link_or_copy(partial: Path, path: Path) -> None:
    """Give a whole file its name; unlike a rename, this fails where the name is taken."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("x", encoding="utf-8") as file:
            file.write(partial.read_text(encoding="utf-8"))


def command_line() -> str:
    """Return the command of this process, without secrets."""
    file = Path(sys.argv[0])
    name = file.parent.name if file.stem == "__main__" else file.stem  # a command may be the door of a room
    return redact_command(["python", "-m", f"jaxppo.{name}", *sys.argv[1:]])


def resume_command(command: str, folder: Path, config: Any) -> str:
    """Return the command that goes on with a run: those settings are named that its folder does not keep.

    Args:
        command: name of the command.
        folder: run folder.
        config: configuration of the command.
    """
    of_this_call = ("output_dir", "preset", "config", "resume", "dry_run", "target", "profile")
    now, default = flatten(config), flatten(type(config)())
    words = ["python", "-m", f"jaxppo.{command}", "--resume", "--output_dir", str(folder)]
    for name in CALL_ONLY:
        if name in now and name not in of_this_call and now[name] != default[name]:
            value = now[name]
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            words += [f"--{name}", *map(str, values)]
    return redact_command(words)


def _check_same(folder: Path, config: Any) -> None:
    before, now = read_yaml(folder / CONFIG_FILE), plain_values(flatten(config))
    check_settings(before, now, config, f"the run to resume in {folder}")


def _has_another_length(folder: Path, config: Any) -> bool:
    """Return whether a run to resume is given more steps, or fewer, than `config.yaml` says."""
    changed = changed_settings(read_yaml(folder / CONFIG_FILE), plain_values(flatten(config)), config)
    return not changed.keys().isdisjoint(LENGTHS)


LENGTHS = ("total_episodes", "num_train_epochs")
"""The settings that say how many steps a run has."""


def check_settings(before: Mapping[str, Any], now: Mapping[str, Any], config: Any, of: str) -> None:
    """Check that a run goes on with its settings, but for those of one call and those in `allow_changes`.

    Args:
        before: as it had them, as from `plain_values`; one that it did not know had its default.
        now: as it has them.
        config: configuration of the command.
        of: whose settings those before are, for the message.

    Raises:
        ConfigError: other settings differ, and the message names each; or `allow_changes` names what is no setting.
    """
    for name in config.run.allow_changes:
        if name not in now and name not in before:
            raise ConfigError(f"allow_changes: expected names of settings, got {name!r}{did_you_mean(name, now)}")
    differences = [
        f"{name} {now[name]!r} (was {value!r})" if name in now else f"no {name} (was {value!r})"
        for name, value in changed_settings(before, now, config).items()
        if name not in config.run.allow_changes
    ]
    if differences:
        got = ", ".join(differences)
        fix = "leave these settings as they were, or name a new output_dir, or these in --allow_changes"
        raise ConfigError(f"config: expected that of {of}, got {got}; {fix}")


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the settings of a run, not of one call, that have another value now: {name: value before}.

    Args:
        before: see `check_settings`.
        now: see `check_settings`.
        config: see `check_settings`.
    """
    before = completed(plain_values(flatten(type(config)())) | renewed(before, now))
    return {
        name: value
        for name, value in before.items()
        if name not in CALL_ONLY and (name not in now or now[name] != value) and not _means_same(name, value, now)
    }


def _means_same(name: str, before: Any, now: Mapping[str, Any]) -> bool:
    """Return whether another value leaves a run as it is: what was the default for the longest prompt, as none is.

    All rows were within it, or were left out as they are now.
    """
    default = DataConfig(filter_overlong_prompts=True).longest_prompt
    return name == "max_prompt_length" and before == default and now.get(name, before) is None


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
