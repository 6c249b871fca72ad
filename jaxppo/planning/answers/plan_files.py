"""Plans as files, as planners and the planning competitions keep them: `MODEL/DOMAIN/p01.plan`, `p01.plan.1`."""

import re
from collections.abc import Collection
from pathlib import Path

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import Answer, Unread
from jaxppo.planning.datasets.files import read_text
from jaxppo.planning.importing.pddl_folder import MAX_BYTES

_NAME = re.compile(r"(.+?)(?:\.pddl)?\.(?:plan|soln|sol|solution)(?:\.\d{1,9})?", re.IGNORECASE)


def is_plan_file(path: Path) -> bool:
    """Return whether a file is called like a plan."""
    return _NAME.fullmatch(path.name) is not None


def read_plan_file(path: Path, source: Path, label: str, folders: Collection[str]) -> Answer | Unread:
    """Read a plan; its name is that of its problem, several of one name are several answers.

    The innermost folder in whose name there are problems is the domain; what lies above it, in `source`, is the model.

    Args:
        path: the file.
        source: what was asked for: the file, or a folder that it is in.
        label: the file for messages.
        folders: names of the folders with problems.
    """
    match = _NAME.fullmatch(path.name)
    root = source if source.is_dir() else source.parent
    above = list(path.relative_to(root).parts[:-1])
    domain = next((name for name in reversed(above) if name in folders), "")
    outer = above[: len(above) - above[::-1].index(domain) - 1] if domain else above
    try:
        text = read_text(path, MAX_BYTES)
    except DataError as error:
        return Unread.of(label, error)
    model = "/".join(outer) or root.resolve().name
    return Answer(label, model, domain, "plans", match[1] if match else path.name, text)
