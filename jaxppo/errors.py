"""The exceptions a user can meet: each message names the field or file, what was expected and what came."""

import difflib
import os
from collections.abc import Iterable


def hub_fix() -> str:
    """Return what to do where the Hugging Face hub did not give what was asked for."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set: unset it to download, or name a folder"
    return "check the name and the network (`hf auth login` for what is private), or name a folder"


class JaxppoError(Exception):
    """Bad input or a broken tool; the commands print it as one line and exit with status 2."""


class ConfigError(JaxppoError):
    """A flag, a configuration key or a combination of them is wrong."""


class DataError(JaxppoError):
    """A data file, a row or a run folder is missing or malformed."""


class MissingColumnError(DataError):
    """A row of a data set does not have a column.

    Args:
        message: the row and the column.
        columns: those that the row has.
    """

    def __init__(self, message: str, columns: Iterable[str]):
        super().__init__(message)
        self.columns = tuple(columns)

    def with_fix(self, fix: str) -> DataError:
        """Return the same error with the columns that the row has, and with what to do."""
        return DataError(f"{self} among {', '.join(map(shown, self.columns))}; {fix}")


class ModelError(JaxppoError):
    """A model folder is missing, unsupported or does not fit."""


class HubError(JaxppoError):
    """The Hugging Face hub did not take what was pushed to it."""


class ToyError(JaxppoError):
    """A toy model or data set could not be made."""


class TrainingError(JaxppoError):
    """A run cannot go on: its losses or gradients are not finite."""


class PddlError(JaxppoError):
    """PDDL text that cannot be read.

    Args:
        source: file name, or a label such as `<problem>` for text without a file.
        line: 1-based line where reading stopped.
        message: what was expected and what came.
    """

    def __init__(self, source: str, line: int, message: str):
        super().__init__(f"{source}:{line}: {message}")
        self.source = source
        self.line = line
        self.message = message


class ValidatorError(JaxppoError):
    """The plan validator itself is missing or broken (never: the plan is bad)."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind where it has none."""
    return str(error).partition("\n")[0] or type(error).__name__


def with_file_names(message: str, domain: str, problem: str) -> str:
    """Name the files in a message about their texts, which begins with `<domain>:` or `<problem>:` or goes on so."""
    return message.replace("<domain>:", f"{domain}:").replace("<problem>:", f"{problem}:")


def shown(name: str) -> str:
    """Return a name that comes from a file for a message of one line: as it is, unless it cannot be printed."""
    return name if name.isprintable() else repr(name)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there was no memory, on an accelerator or on the host."""
    # XLA has no class of its own for it; its messages
    # begin with the status, and may go on for pages.
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:200]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the known one that is most like it, or nothing."""
    # One proposal: several would have to be compared,
    # and the second is seldom the one that is meant.
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""
