"""What importers read: problems with the plans that came with them, and plans in the layouts that planners write."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jaxppo.errors import DataError, PddlError, ValidatorError, with_file_names
from jaxppo.planning.datasets.files import read_pddl_text
from jaxppo.planning.datasets.folder import Rejected, describe
from jaxppo.planning.importing.pddl_folder import MAX_BYTES, PLAN_FOLDERS, Definition, PddlFolder
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import Action, parse_plan_text, parse_timed_plan_text
from jaxppo.planning.language.temporal import needs_time_stamps
from jaxppo.planning.validate.api import validate_actions

FROM_SOURCE = "given"
"""In the column `planner`: the plan came with its problem."""


class SourceProblem(NamedTuple):
    """A problem as a source has it.

    Attributes:
        id: its name in the data set.
        domain: name of its domain.
        domain_pddl: domain text.
        problem_pddl: problem text.
        source: where it comes from: a file, or a file and line, relative to the source.
        plans: its plans, the reference first, without repetitions; nothing is checked by the readers.
        planner: where those come from, with the version.
        plan_error: why a plan that came with it cannot be read.
        split: its split in the source; empty where that has none.
        columns: further columns of its row.
        files: those of its domain and of itself, relative to the source; None where a row has the texts.
    """

    id: str
    domain: str
    domain_pddl: str
    problem_pddl: str
    source: str
    plans: tuple[tuple[Action, ...], ...] = ()
    planner: str = ""
    plan_error: str | None = None
    split: str = ""
    columns: Mapping[str, Any] = {}
    files: tuple[str, str] | None = None

    def rejected(self, reason: str) -> Rejected:
        """Return this problem as one that is left out."""
        if self.files is not None:
            reason = with_file_names(reason, *self.files)
        return Rejected(self.id, self.domain, self.split, self.source, reason)


Reading: TypeAlias = "Iterator[SourceProblem | Rejected]"
"""What a reader yields: one bad file or row never ends it."""


def unreadable(
    source: str, error: Exception, id: str = "", domain: str = "", split: str = ""
) -> Rejected:
    """Return a file or row that cannot be read as one that is left out, with as much as is known of it."""
    return Rejected(id, domain, split, source, f"unreadable: {error}")


def read_plan(text: str) -> tuple[Action, ...]:
    """Read a plan file: `(action args)` one after another, or with time stamps, which are dropped.

    Raises:
        DataError: the text is neither.
    """
    plan = parse_plan_text(text)
    if plan.error is None:
        return plan.actions
    timed = parse_timed_plan_text(text)
    # Time stamps of a classical planner are only the order
    # of its steps, which need not be that of the lines.
    if timed.error is None:
        steps = sorted(timed.steps, key=lambda step: step.start)
        return tuple(step.action for step in steps)
    # The reader that came further is the one that the text was meant for.
    step = max(plan.error_step or 0, timed.error_step or 0)
    raise DataError(
        f"unreadable plan: expected '(action argument ...)' one after another, got another text as step {step}"
    )


def problem_objection(domain_pddl: str, problem_pddl: str) -> str | None:
    """Say why a problem cannot become a row: time matters in it, or it cannot be read; None where it can."""
    if needs_time_stamps(domain_pddl, problem_pddl):
        return "temporal: expected plans that are lists of actions, got durative actions, events or timed facts"
    # What is unsupported may be valid PDDL, and is a kind of its own in the report.
    try:
        parse_problem(problem_pddl, parse_domain(domain_pddl))
    except UnsupportedPddlError as error:
        return f"unsupported: {error}"
    except PddlError as error:
        return f"unreadable: {error}"
    return None


def plan_objection(domain_pddl: str, problem_pddl: str, plan: Sequence[Action]) -> str | None:
    """Say why a plan is not valid, in this process, or for VAL where that does not cover it; else None."""
    try:
        verdict = validate_actions(domain_pddl, problem_pddl, plan, "auto")
    except PddlError as error:
        return f"unreadable: {error}"
    except ValidatorError as error:
        return f"unsupported: {error}"
    return None if verdict.valid else describe(verdict)


def read_pddl(source: Path) -> Reading:
    """Read a folder of PDDL files with plans beside them; `PddlFolder` says how they find each other."""
    folder = PddlFolder(source)
    for path in folder.files:
        try:
            definition = folder.definition(path)
        except DataError as error:
            # Folders of plans may hold plans that are called `.pddl`, which define nothing.
            if path.parent.name not in PLAN_FOLDERS:
                label = folder.label(path)
                yield unreadable(label, error, id=label.removesuffix(path.suffix))
            continue
        if definition.kind == "problem":
            yield _read_problem(folder, definition)


def _read_problem(folder: PddlFolder, definition: Definition) -> SourceProblem | Rejected:
    """Add domain and plan to a problem."""
    label = folder.label(definition.path)
    name = label.removesuffix(definition.path.suffix)
    try:
        domain = folder.domain_of(definition)
    except DataError as error:
        return Rejected(name, definition.domain, "", label, f"no domain: {error}")
    problem = SourceProblem(
        name,
        domain.name,
        domain.text,
        definition.text,
        label,
        columns={"source": label},
        files=(folder.label(domain.path), label),
    )
    plan_file = folder.plan_of(definition)
    if plan_file is None:
        return problem
    try:
        plan = read_plan(read_pddl_text(plan_file, MAX_BYTES))
        return problem._replace(plans=(plan,), planner=FROM_SOURCE)
    except DataError as error:
        return problem._replace(plan_error=str(error))
