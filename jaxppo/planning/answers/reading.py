"""Find the files of answers: result files of PlanBench, tables, plans as files; each by what its name ends with."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import Answer, Unread
from jaxppo.planning.answers.columns import TABLE, read_row, with_named
from jaxppo.planning.answers.plan_files import is_plan_file, read_plan_file
from jaxppo.planning.answers.planbench_results import read_results
from jaxppo.planning.answers.tables import READERS
from jaxppo.planning.importing.source_files import natural_key

Answers = Iterator[Answer | Unread]


def read_answers(source: Path, named: Mapping[str, str], configs: Collection[str], folders: Collection[str]) -> Answers:
    """Read the answers of a file, or of all files in a folder; what cannot be read is a line, never an exception.

    Args:
        source: file or folder.
        named: columns that were asked for, see `columns.parse_columns`.
        configs: names of PlanBench's configurations.
        folders: names of the folders with problems.

    Raises:
        DataError: there is no such file or folder, or no file of the folder is of a kind that is read.
    """
    if not source.exists():
        raise DataError(f"plans: expected a file or a folder, got {source}")
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    readers: dict[str, Callable[[Path, str], Answers]] = {
        ".json": partial(read_results, named=named, configs=configs),
        **{suffix: partial(_table, suffix=suffix, named=named) for suffix in READERS},
    }
    known = ", ".join([*readers, ".plan"])
    if not any(path.suffix.lower() in readers or is_plan_file(path) for path in files):
        kinds = Counter(path.suffix or "no suffix" for path in files)
        found = ", ".join(f"{count} with {suffix}" for suffix, count in kinds.most_common(3)) or "an empty folder"
        got = found if source.is_dir() else str(source)
        raise DataError(f"plans: expected files that end with {known} (a plan alone: PROBLEM.plan), got {got}")
    for path in sorted(files, key=lambda path: natural_key(path.as_posix())):
        label = path.name if path == source else path.relative_to(source).as_posix()
        if path.suffix.lower() in readers:
            yield from readers[path.suffix.lower()](path, label)
        elif is_plan_file(path):
            yield read_plan_file(path, source, label, folders)


def _table(path: Path, label: str, suffix: str, named: Mapping[str, str]) -> Answers:
    """Read a row at a time; a model that no row names is called like the file."""
    columns, known = with_named(TABLE, named), {"model": path.stem, "prompt": "answers"}
    try:
        for where, row in READERS[suffix](path, label):
            try:
                yield row if isinstance(row, Unread) else read_row(row, columns, where, known)
            except DataError as error:
                yield Unread.of(where, error)
    except DataError as error:
        yield Unread.of(label, error)
