"""The folder of a run: claimed once, resumed only under the configuration it was made with."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from jaxppo.config import CONFIG_FILE, RunConfig, flatten, read_yaml, write_yaml
from jaxppo.errors import ConfigError, DataError

_FREE_TO_CHANGE = {"output_dir", "preset", "config", "resume", "quiet", "dry_run"}


def default_folder(command: str, run: RunConfig) -> Path:
    """`--output_dir`, or a new folder named by command, preset and time."""
    if run.output_dir is not None:
        return Path(run.output_dir)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("outputs") / f"{command}-{run.preset or 'default'}-{now}"


def claim(folder: Path, config: Any, run: RunConfig) -> None:
    """Make the run folder and write its configuration, or check that it is the run to resume.

    Raises:
        ConfigError: the folder holds something else, or another configuration than the run being resumed.
    """
    if (folder / CONFIG_FILE).exists():
        if not run.resume:
            raise ConfigError(f"output_dir: expected a new folder, or --resume, got {folder} that holds a run")
        _check_same(folder, config)
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"output_dir: expected a new or empty folder, got {folder} that holds other files")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir: expected a folder that can be made, got {folder} ({error.strerror})") from None
    write_yaml(config, folder / CONFIG_FILE)


def _check_same(folder: Path, config: Any) -> None:
    before = read_yaml(folder / CONFIG_FILE)
    for name, value in flatten(config).items():
        now = list(value) if isinstance(value, tuple) else value
        if name not in _FREE_TO_CHANGE and before.get(name) != now:
            was = before.get(name)
            raise ConfigError(f"{name}: expected {was!r} as in the run to resume in {folder}, got {now!r}")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that is never seen half-written."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} where the file does not exist yet.

    Raises:
        DataError: the file is not a JSON object.
    """
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
