"""Find the files of answers: result files of PlanBench, tables, plans as files; each by what its name ends with."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import PlanAnswer, UnusableAnswer
from jaxppo.planning.answers.columns import TABLE, read_row, with_column_names
from jaxppo.planning.answers.plan_files import read_plan_file
from jaxppo.planning.answers.planbench_results import read_results
from jaxppo.planning.datasets.files import is_json_list
from jaxppo.planning.importing.pddl_folder import PLAN_NAME
from jaxppo.planning.importing.source_files import file_label, list_files, located_rows

Answers = Iterator[PlanAnswer | UnusableAnswer]
_PLANBENCH = ".json"
_TABLES = (".jsonl", ".csv", ".parquet")


def read_answers(
    source: Path,
    column_names: Mapping[str, str],
    configs: Collection[str],
    folders: Collection[str],
) -> Answers:
    """Read the answers of a file, or of all files in a folder; what cannot be read is a line, never an exception.

    Args:
        source: file or folder.
        column_names: columns that were asked for, see `columns.parse_columns`.
        configs: names of PlanBench's configurations.
        folders: names of the folders with problems.

    Raises:
        DataError: there is no such file or folder, or no file of the folder is of a kind that is read.
    """
    if not source.exists():
        raise DataError(f"plans: expected a file or a folder, got {source}")
    files = [path for path in list_files(source, "*") if path.is_file()]
    suffixes = [_PLANBENCH, *_TABLES]
    kinds = f"{', '.join(suffixes)} or .plan (a plan alone: PROBLEM.plan)"
    if not any(path.suffix in suffixes or PLAN_NAME.fullmatch(path.name) for path in files):
        raise DataError(f"plans: expected files that end with {kinds}, got none in {source}")
    for path in files:
        label = file_label(path, source)
        if path.suffix == _PLANBENCH and not _is_table(path):
            yield from read_results(path, label, column_names, configs)
        elif path.suffix == _PLANBENCH or path.suffix in _TABLES:
            yield from _read_table(path, label, column_names)
        elif PLAN_NAME.fullmatch(path.name):
            yield read_plan_file(path, source, label, folders)
        elif path.suffix.lower() != ".pddl" and not path.name.startswith("."):
            # Logs and pictures of a result folder, too: a plan of another name must not go missing.
            yield UnusableAnswer(label, f"not read: expected a name that ends with {kinds}")


def _is_table(path: Path) -> bool:
    """Return whether a `.json` file is a list of rows; PlanBench's are objects."""
    # One that cannot be read is reported by the reader of PlanBench's.
    with suppress(DataError):
        return is_json_list(path)
    return False


def _read_table(path: Path, label: str, column_names: Mapping[str, str]) -> Answers:
    """Read a row at a time; a model that no row names is called like the file."""
    columns = with_column_names(TABLE, column_names)
    defaults = {"model": path.stem, "prompt": "answers"}
    for place, row in located_rows(path, label):
        try:
            if isinstance(row, DataError):
                raise row
            yield read_row(row, columns, place, defaults)
        except DataError as error:
            yield UnusableAnswer.from_error(place, error)
