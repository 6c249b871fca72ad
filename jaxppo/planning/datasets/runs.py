"""What the commands that make data sets share: the folder, the planners, and what is shown at the end."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.old_settings import translate_old_settings
from jaxppo.config.paths import is_partial
from jaxppo.config.sources import (
    CALL_ONLY,
    CONFIG_FILE,
    flatten,
    plain_values,
    read_yaml,
    replace,
    write_yaml,
)
from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.card import leak_text
from jaxppo.planning.datasets.files import REPORT_FILE
from jaxppo.planning.datasets.folder import split_table
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.solve.planners import PlanResult, PlanTask, find_plans
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, find_val

NO_PLANNER = "none"
"""In place of a planner: only plans that came with the problems."""
PLANS_FILE = "plans.jsonl"
"""Beside the splits: the planners' results."""


def claim_folder(folder: Path, config: Any, terminal: Terminal) -> bool:
    """Make the folder with a file of the settings, or continue in one that holds a part of their data set.

    The file has no value for `workers`, which may differ when a data set is continued.

    Returns:
        Whether anything is to be done; where the data set is finished, a line says so.

    Raises:
        ConfigError: it holds another data set, or something else.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir: expected a folder, got the file {folder}")
    if not (folder / CONFIG_FILE).exists():
        # A process killed while it claimed the folder may have left the settings half-written.
        if folder.exists() and any(not is_partial(path, CONFIG_FILE) for path in folder.iterdir()):
            raise ConfigError(
                f"output_dir: expected a new or empty folder, got {folder} that holds other files"
            )
        write_yaml(replace(config, workers=None), folder / CONFIG_FILE)
        return True
    # Every setting that differs is named, also one that a newer version has or lacks.
    settings = settings_of(config)
    old_settings = translate_old_settings(read_yaml(folder / CONFIG_FILE), settings)
    differences = [
        f"{name} {settings.get(name)!r} (was {old_settings.get(name)!r})"
        for name in dict.fromkeys([*settings, *old_settings])
        if settings.get(name) != old_settings.get(name)
    ]
    if differences:
        raise ConfigError(
            f"output_dir: expected another folder, or the settings of the data set in {folder}, "
            f"got {', '.join(differences)}"
        )
    if (folder / REPORT_FILE).exists():
        terminal.result(f"finished: {folder} holds this data set; nothing was changed")
        return False
    return True


def settings_of(config: Any) -> dict[str, Any]:
    """Return the settings that decide the rows."""
    settings = plain_values(flatten(config))
    return {name: value for name, value in settings.items() if name not in (*CALL_ONLY, "workers")}


def check_val(use_val: bool | None) -> None:
    """Raise a `ConfigError` where VAL is asked for and not installed."""
    if use_val and find_val() is None:
        raise ConfigError(f"use_val: expected VAL to be installed: {HOW_TO_GET_VAL}")


def solve_tasks(tasks: Sequence[PlanTask], config: Any) -> Iterator[PlanResult]:
    """Find plans with the planner of the settings; what is found is kept in the folder of the data set."""
    return find_plans(
        tasks,
        planner=config.planners.planner,
        timeout_s=config.planners.planner_timeout_s,
        workers=config.planners.workers,
        cache=Path(config.output_dir, PLANS_FILE),
    )


def show_report(report: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """Print what a data set holds, what was left out, and what its splits share."""
    terminal.result(split_table(report["splits"]))
    rejected = ", ".join(f"{reason} {count}" for reason, count in report["rejected"].items())
    terminal.result(f"rejected: {rejected or 'none'}")
    for shortfall in report.get("shortfalls", []):
        terminal.warn(
            f"fewer rows than asked for: {shortfall}; ask for fewer, or for larger problems"
        )
    terminal.result(f"leaks: {leak_text(report['leaks'])}")
    terminal.result(f"written to {folder}")
