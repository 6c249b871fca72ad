"""Where the splits of a data set are: files that this package reads, or tables of the `datasets` library."""

import re
from pathlib import Path
from typing import Any

from jaxppo import toys
from jaxppo.errors import DataError, hub_fix
from jaxppo.planning.datasets import files as dataset_files


def find_dataset(
    dataset: str,
    split: str,
    configuration: str | None,
) -> tuple[str, bool]:
    """Return the folder of a data set, or its hub id, and whether this package reads its files by itself.

    Raises:
        DataError: it is a file, or has no splits.
    """
    folder = toys.find(dataset) or Path(dataset)
    if folder.is_file():
        endings = ", ".join(dataset_files.SPLIT_ENDINGS)
        raise DataError(
            f"dataset: expected a folder with one file per split, got the file {folder}; give its folder, and the "
            f"split {folder.stem} (files that end in {endings} are read)"
        )
    # What `Dataset.save_to_disk` writes, where it should have been a `DatasetDict`.
    if (folder / "state.json").exists():
        raise DataError(
            f"dataset: expected splits, got one `datasets.Dataset` without a name in {folder}; save "
            "DatasetDict({'train': ...}), which has splits"
        )
    if not folder.is_dir():
        return dataset, False
    return str(folder), configuration is None and not _is_for_library(folder, split)


def _is_for_library(folder: Path, split: str) -> bool:
    """Return whether `save_to_disk` wrote a folder, or it is laid out as on the hub: a card, or numbered parts."""
    if (folder / "dataset_dict.json").exists():
        return True
    # A split in a form of our own is read here, whatever is beside it.
    if any((folder / f"{split}{ending}").exists() for ending in (".jsonl", ".parquet")):
        return False
    card = folder / "README.md"
    if card.is_file() and re.match(
        r"---\n(.*\n)*?configs:", card.read_text(encoding="utf-8", errors="replace")
    ):
        return True
    part = "-?????-of-?????.parquet"
    patterns = [f"*{part}", f"*/*{part}"]
    patterns += [f"data/{split}{ending}" for ending in dataset_files.SPLIT_ENDINGS]
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def has_split(dataset: str, split: str, configuration: str | None) -> bool:
    """Return whether a data set has a split; True also where that cannot be found out, as its reader says why."""
    try:
        name, is_read_here = find_dataset(dataset, split, configuration)
        if is_read_here:
            return bool(dataset_files.files_of_split(Path(name), split))
        return split in _library_splits(name, configuration)
    except Exception:  # whatever the many readers and the hub raise
        return True


def _library_splits(name: str, configuration: str | None) -> list[str]:
    """List the splits that the `datasets` library knows."""
    import datasets  # slow to import, and not needed for files that are read here

    if (Path(name) / "dataset_dict.json").exists():
        saved: Any = datasets.load_from_disk(name)
        return list(saved)
    return list(map(str, datasets.get_dataset_split_names(name, configuration)))


def library_table(
    name: str,
    split: str,
    configuration: str | None,
) -> Any:
    """Return a split as the `datasets` library has it: a folder in its format or in the hub's layout, or a hub id.

    Args:
        name: folder or hub id.
        split: name of the split.
        configuration: which of several data sets of one hub repository.

    Raises:
        DataError: it cannot be opened.
    """
    import datasets  # slow to import, and not needed for built-in domains

    folder = Path(name)
    if not folder.is_dir() and name.count("/") != 1:
        raise DataError(
            f"dataset: expected a folder or a hub id such as 'user/name', got {name!r} (planning problems are built in "
            "as blocksworld)"
        )
    is_saved = (folder / "dataset_dict.json").exists()
    if is_saved and configuration is not None:
        raise DataError(
            f"dataset_config: expected none for the saved data set {name}, got {configuration!r}"
        )
    try:
        if not is_saved:
            return datasets.load_dataset(name, configuration, split=split)
        return datasets.load_from_disk(name)[split]
    except Exception as error:  # whatever the many readers and the hub raise
        if "Config name is missing" in str(error):
            names = ", ".join(datasets.get_dataset_config_names(name))
            raise DataError(
                f"dataset_config: expected one of {names} for {name}, got none"
            ) from error
        reason = str(error).strip().split("\n")[0]
        reason = f"{type(error).__name__}: {reason}"
        if not folder.is_dir():
            missing = "there is no such folder (`python -m jaxppo.planning build` makes one)"
            reason = f"{missing}, and {reason}; {hub_fix()}"
        raise DataError(f"dataset: expected a split {split!r} in {name}, got {reason}") from error
