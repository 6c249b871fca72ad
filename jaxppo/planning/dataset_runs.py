"""A folder that a command makes a data set in: whose it is, whether it is finished, and what is shown at the end."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxppo.config_sources import CALL_ONLY, CONFIG_FILE, flatten, plain_values, read_yaml, replace, write_yaml
from jaxppo.errors import ConfigError
from jaxppo.planning.data_card import leak_text
from jaxppo.planning.dataset_folder import REPORT_FILE, split_table
from jaxppo.planning.terminal import Terminal

_HOW_FAST = ("workers", "plans")
"""Settings that do not decide the result."""


def is_finished(folder: Path, config: Any) -> bool:
    """Whether the folder holds the data set of these settings; it may hold a part of it, or nothing.

    Raises:
        ConfigError: it holds another data set, or something else.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir: expected a folder, got the file {folder}")
    if not (folder / CONFIG_FILE).exists():
        # A process killed while it claimed the folder may have left the settings half-written.
        if folder.exists() and any(not path.name.startswith(f".{CONFIG_FILE}.") for path in folder.iterdir()):
            raise ConfigError(f"output_dir: expected a new or empty folder, got {folder} that holds other files")
        return False
    before, now = read_yaml(folder / CONFIG_FILE), settings_of(config)
    differences = [
        f"{name} {now.get(name)!r} (was {before.get(name)!r})"
        for name in dict.fromkeys([*now, *before])
        if now.get(name) != before.get(name)
    ]
    if differences:
        raise ConfigError(
            f"output_dir: expected another folder, or the settings of the data set in {folder}, "
            f"got {', '.join(differences)}"
        )
    return (folder / REPORT_FILE).exists()


def claim_folder(folder: Path, config: Any) -> None:
    """Make the folder with the settings, without those that only say how fast."""
    if (folder / CONFIG_FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{CONFIG_FILE}.partial"
    write_yaml(replace(config, **dict.fromkeys(_HOW_FAST)), partial)
    partial.replace(folder / CONFIG_FILE)


def settings_of(config: Any) -> dict[str, Any]:
    """What decides the result."""
    flat = plain_values(flatten(config))
    return {name: value for name, value in flat.items() if name not in (*CALL_ONLY, *_HOW_FAST)}


def command_line(config: Any, command: str) -> str:
    """The command that makes the same files, such as `python -m jaxppo.planning import --source problems`."""
    now, usual = settings_of(config), settings_of(type(config)())
    words = ["python", "-m", "jaxppo.planning", command]
    for name, value in now.items():
        if value is True and usual[name] is False:  # a switch
            words.append(f"--{name}")
        elif value != usual[name]:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def show_report(report: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """Print what a data set holds, what was left out, and what its splits share."""
    terminal.result(split_table(report["splits"]))
    rejected = ", ".join(f"{reason} {count}" for reason, count in report["rejected"].items())
    terminal.result(f"rejected: {rejected or 'none'}")
    for shortfall in report.get("shortfalls", []):
        terminal.warn(f"fewer rows than asked for: {shortfall}")
    terminal.result(f"leaks: {leak_text(report['leaks'])}")
    terminal.result(f"written to {folder}")
