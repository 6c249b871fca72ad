"""An answer of a model to a planning problem, as a file has it, and a line about one that cannot be used."""

from typing import Any, NamedTuple

from jaxppo.errors import DataError, first_line

_MOST_SHOWN = 300

GENERATION, OPTIMALITY, VERIFICATION = "generation", "optimality", "verification"
"""What an answer is asked for: a plan; one that costs no more than the reference; whether a given plan is valid."""


class Answer(NamedTuple):
    """A text that should be a plan, and what its file says about it.

    Attributes:
        source: file, and place in it.
        model: who answered.
        domain: a configuration of PlanBench, a folder, a PDDL file, or the PDDL itself; may be empty.
        prompt: the kind of prompt.
        problem: the number or name of an instance, a file, or the PDDL itself.
        text: the answer; None: there is none, which is a failure.
        reference: a plan for the problem; empty where none is known.
        recorded: the verdict that the file holds.
        extracted: the plan that somebody else has cut out of the same answer.
        task: what was asked for; of a verification `text` is the plan that was given.
        claim: of a verification, whether the model says that the plan is valid; None where it says neither.
        given: domain and problem as the prompt shows them in PDDL; they count before any file.
    """

    source: str
    model: str
    domain: str
    prompt: str
    problem: str
    text: str | None
    reference: str = ""
    recorded: bool | None = None
    extracted: str | None = None
    task: str = GENERATION
    claim: bool | None = None
    given: tuple[str, str] | None = None


class Unread(NamedTuple):
    """A file or an answer that cannot be used, with the reason in one line."""

    source: str
    reason: str

    @classmethod
    def of(cls, source: str, error: Exception) -> "Unread":
        """Make the line of an error; what hostile files write into messages is cut."""
        return cls(source, first_line(error)[:_MOST_SHOWN])


def is_pddl(text: str) -> bool:
    """Return whether a text is PDDL itself, and no name of a file."""
    return text.lstrip().startswith(("(", ";"))


def text_of(value: Any, name: str) -> str | None:
    """Read a plan: a text, or a list of steps.

    Raises:
        DataError: it is something else.
    """
    if isinstance(value, list) and all(isinstance(step, str) for step in value):
        return "\n".join(value)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{name}: expected a text, a list of steps or null, got {value!r:.60}")
    return value


def name_of(value: Any, name: str) -> str:
    """Read a name: a text or a whole number; empty for nothing.

    Raises:
        DataError: it is something else.
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{name}: expected a name or a number, got {value!r:.60}")
    return str(value)


_VERDICTS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": None}


def verdict_of(value: Any, name: str) -> bool | None:
    """Read a recorded verdict: true or false, 1 or 0, yes or no; None for nothing.

    Raises:
        DataError: it is something else.
    """
    if value is None:
        return None
    key = str(value).strip().lower()
    if key not in _VERDICTS:
        raise DataError(f"{name}: expected true or false, got {value!r:.60}")
    return _VERDICTS[key]
