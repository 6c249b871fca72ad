"""What of a run in stages is done: each stage once, however often the run is killed and resumed."""

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
    """Stages in a folder, with what each of them has found out: plain values, for JSON.

    Args:
        folder: gets `stages.json`.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, folder: Path):
        self._path = folder / STAGES_FILE
        self._done: dict[str, Any] = processes.on_first(lambda: read_json(self._path))

    def __contains__(self, name: str) -> bool:
        """Return whether a stage is done."""
        return name in self._done

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return what a stage has found out that is done."""
        return self._done[name]

    def once(self, name: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what a stage has found out; it is done now unless it was before. All processes must call this.

        Args:
            name: of the stage.
            do: does it; whatever it leaves behind beside its result must be on disk when it returns.
        """
        if name not in self._done:
            preemption.check()
            found = plain(do())
            self._done[name] = processes.on_first(lambda: self._written(name, found))
        return self._done[name]

    def _written(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, self._done | {name: found})
        return found
