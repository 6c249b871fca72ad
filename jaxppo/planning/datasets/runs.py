"""What the commands that make data sets share: the folder, the planners, and what is shown at the end."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from jaxppo.planning.datasets.config import PlannerConfig
from jaxppo.planning.datasets.files import REPORT_FILE
from jaxppo.planning.datasets.folder import split_table
from jaxppo.planning.datasets.rows import Row
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.planners import PLANNERS, PlanTask, find_plans, planner_version
from jaxppo.planning.validate.val import HOW_TO_GET_VAL, find_val

NO_PLANNER = "none"
"""In place of a planner: only plans that came with the problems."""
_PLANS_FILE = "plans.jsonl"
# Settings that do not decide the rows, and so may differ when a data set is continued.
_FREE_SETTINGS = ("workers", "plans")


def is_finished(folder: Path, config: Any) -> bool:
    """Return whether the folder holds the finished data set of these settings; it may hold a part of it, or nothing.

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
        return False
    # Every setting that differs is named, also one that a newer version has or lacks.
    old_settings = read_yaml(folder / CONFIG_FILE)
    settings = settings_of(config)
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
    return (folder / REPORT_FILE).exists()


def claim_folder(folder: Path, config: Any) -> None:
    """Make the folder with a file of the settings, in which those that may differ have no value."""
    if (folder / CONFIG_FILE).exists():
        return
    free = [name for name in _FREE_SETTINGS if name in flatten(config)]
    write_yaml(replace(config, **dict.fromkeys(free)), folder / CONFIG_FILE)


def settings_of(config: Any) -> dict[str, Any]:
    """Return the settings that decide the rows."""
    settings = plain_values(flatten(config))
    return {
        name: value for name, value in settings.items() if name not in (*CALL_ONLY, *_FREE_SETTINGS)
    }


def command_line(config: Any, command: str) -> str:
    """Write the command that makes the same files, such as `python -m jaxppo.planning import --source problems`."""
    # Only what differs from the defaults, as somebody would type it.
    defaults = settings_of(type(config)())
    words = ["python", "-m", "jaxppo.planning", command]
    for name, value in settings_of(config).items():
        if value == defaults[name]:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words.extend(map(str, value))
        # A switch has no value; `use_val`, which is None by default, is no switch.
        elif not (value is True and defaults[name] is False):
            words.append(str(value))
    return shlex.join(words)


def check_planners(planners: PlannerConfig, use_val: bool | None) -> None:
    """Refuse planners, or VAL, that are asked for and not installed.

    Raises:
        ConfigError: one is not installed, or the second planner does not make optimal plans.
    """
    if use_val and find_val() is None:
        raise ConfigError(f"use_val: expected VAL to be installed: {HOW_TO_GET_VAL}")
    # Asking for its version raises the error of an unknown or missing planner.
    if planners.planner != NO_PLANNER:
        planner_version(planners.planner)
    if planners.optimal_planner is not None:
        planner_version(planners.optimal_planner)
        if not PLANNERS[planners.optimal_planner].optimal:
            names = ", ".join(name for name, planner in PLANNERS.items() if planner.optimal)
            raise ConfigError(
                f"optimal_planner: expected one of {names}, got {planners.optimal_planner!r}"
            )


def plans_file(folder: Path, planners: PlannerConfig) -> Path:
    """Return the file that keeps the planners' results."""
    return Path(planners.plans or folder / _PLANS_FILE)


def optimal_plans(
    rows: Sequence[Row], planner: str, planners: PlannerConfig, plans: Path, terminal: Terminal
) -> list[tuple[Action, ...] | None]:
    """Find plans with the second planner, in the order of the rows; None where it found none in time.

    Args:
        rows: the problems.
        planner: name of the second planner.
        planners: how long, and with how many processes.
        plans: from `plans_file`.
        terminal: where progress goes.
    """
    with terminal.progress(len(rows), "optimal", unit="row") as progress:
        results = find_plans(
            [PlanTask(row["id"], row["domain_pddl"], row["problem_pddl"]) for row in rows],
            planner=planner,
            timeout_s=planners.planner_timeout_s,
            workers=planners.workers,
            cache=plans,
            progress=lambda n_done, _: progress.update(n_done),
        )
        return [result.plan for result in results]


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
