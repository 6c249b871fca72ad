"""An answer of a model to a planning problem, as a file has it, and a line about one that cannot be used."""

from typing import Any, NamedTuple

from jaxppo.errors import DataError, first_line

_MAX_REASON = 300
"""Characters of a reason that are shown."""

GENERATION = "generation"
OPTIMALITY = "optimality"
VERIFICATION = "verification"
"""What an answer is asked for: a plan; one that costs no more than the reference; whether a given plan is valid."""


class PlanAnswer(NamedTuple):
    """A text that should be a plan, and what its file says about it.

    Attributes:
        source: file, and place in it.
        model: who answered.
        domain: a configuration of PlanBench, a folder, a PDDL file, or the PDDL itself; may be empty.
        prompt: the kind of prompt.
        problem: the number or name of an instance, a file, or the PDDL itself.
        text: the answer; None: there is none, which is a failure.
        reference: a plan for the problem; empty where there is none.
        recorded: the verdict that the file holds.
        extracted: the plan that somebody else has cut out of the same answer.
        task: what was asked for; of a verification `text` is the plan that the prompt shows.
        claim: of a verification, whether the model says that the plan is valid; None where it says neither.
        prompt_pddl: domain and problem as the prompt shows them in PDDL; they count before any file.
        is_planner_output: the text is a planner's, and nothing is cut out of it.
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
    prompt_pddl: tuple[str, str] | None = None
    is_planner_output: bool = False


class UnusableAnswer(NamedTuple):
    """A file or an answer that cannot be used, with the reason in one line."""

    source: str
    reason: str

    @classmethod
    def from_error(cls, source: str, error: Exception) -> "UnusableAnswer":
        """Make the line of an error; what hostile files write into messages is cut."""
        return cls(source, first_line(error)[:_MAX_REASON])


def is_pddl(text: str) -> bool:
    """Return whether a text is PDDL itself, and no name of a file."""
    return text.lstrip().startswith(("(", ";"))


def parse_plan_field(value: Any, name: str) -> str | None:
    """Read a plan: a text, or a list of steps.

    Raises:
        DataError: it is something else.
    """
    # In result files and tables a plan may be a list of steps.
    if isinstance(value, list) and all(isinstance(step, str) for step in value):
        return "\n".join(value)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{name}: expected a text, a list of steps or null, got {value!r:.60}")
    return value


def parse_name(value: Any, name: str) -> str:
    """Read a name: a text or a whole number; empty for nothing.

    Raises:
        DataError: it is something else.
    """
    if value is None:
        return ""
    # To Python, a bool is a whole number.
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{name}: expected a name or a number, got {value!r:.60}")
    return str(value)


# CSV has texts alone, and spreadsheets write `TRUE`; JSON has true or 1.
_VERDICTS = {
    "true": True,
    "1": True,
    "yes": True,
    "false": False,
    "0": False,
    "no": False,
    "": None,
}


def parse_verdict(value: Any, name: str) -> bool | None:
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
