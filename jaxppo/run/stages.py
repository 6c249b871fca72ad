"""The stages of a run: each is done once, however often the run is killed and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxppo.parallel import processes
from jaxppo.run import preemption
from jaxppo.run.folder import read_json, write_json
from jaxppo.run.jsonl import plain

STAGES_FILE = "stages.json"
"""Name of the file with the results of the stages that are done."""


class Stages:
    """Stages in a folder, with the result of each: plain values, for JSON.

    Args:
        folder: gets `stages.json`.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, folder: Path):
        self._path = folder / STAGES_FILE
        self._results: dict[str, Any] = processes.on_first(lambda: read_json(self._path))

    def __contains__(self, name: str) -> bool:
        """Return whether a stage is done."""
        return name in self._results

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the result of a stage that is done."""
        return self._results[name]

    def once(self, name: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, which is done now unless it was before. All processes must call this.

        Args:
            name: of the stage.
            do: does it; all its files must be on disk when it returns.
        """
        if name not in self._results:
            # Between stages nothing is lost by stopping.
            preemption.check()
            result = plain(do())
            # All processes go on with the result of the first, which is the one that a resumed run
            # reads.
            self._results[name] = processes.on_first(lambda: self._write(name, result))
        return self._results[name]

    def _write(self, name: str, result: dict[str, Any]) -> dict[str, Any]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, self._results | {name: result})
        return result
