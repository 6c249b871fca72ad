"""Problems that others made, as rows: read, checked, solved where they came without a plan, and split."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError, DataError, PddlError
from jaxppo.planning.datasets.config import ImportConfig
from jaxppo.planning.datasets.files import PAPER_COLUMNS, first_row, read_mappings, split_files
from jaxppo.planning.datasets.folder import Rejected, write_dataset
from jaxppo.planning.datasets.renamed_rows import pools_of, problems_by_domain, renamed_rows
from jaxppo.planning.datasets.rows import Row, make_row
from jaxppo.planning.datasets.runs import (
    NO_PLANNER,
    check_val,
    claim_folder,
    settings_of,
    show_report,
    solve_tasks,
)
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.importing.planbench import is_planbench, read_planbench
from jaxppo.planning.importing.rows import read_paper, read_rows
from jaxppo.planning.importing.source_files import list_files
from jaxppo.planning.importing.source_problems import (
    Reading,
    SourceProblem,
    plan_objection,
    problem_objection,
    read_pddl,
)
from jaxppo.planning.importing.splits import KEEP, assign_splits
from jaxppo.planning.solve.planners import PlanTask, planner_version

# What each kind of source is read with: the source, and
# the folder with its PDDL files where it has none itself.
_READERS: Mapping[str, Callable[[Path, Path], Reading]] = {
    "pddl": lambda source, _: read_pddl(source),
    "planbench": read_planbench,
    "paper": read_paper,
    "rows": lambda source, _: read_rows(source),
}


def import_problems(config: ImportConfig, terminal: Terminal) -> dict[str, Any]:
    """Make a data set of problems in files; one that was stopped is continued, a finished one left alone.

    A file, row or plan that is wrong is listed with its reason in `rejected.jsonl`, and the import continues.

    Args:
        config: the settings.
        terminal: where progress and results go.

    Returns:
        What `report.json` holds; {} where the data set was finished before.

    Raises:
        ConfigError: settings that do not fit each other or the source, or a planner that is not installed.
        DataError: no problem of the source can become a row.
    """
    source = _source(config)
    folder = Path(config.output_dir)
    kind = _kind_of(source) if config.kind == "auto" else config.kind
    _check_settings(config, source, kind)
    if not claim_folder(folder, config, terminal):
        return {}
    rows, rejected, figures = _import(config, source, kind, terminal)
    terminal.print("checking and writing")
    # Rows of ours may be obfuscated: their words go along, so that leaks are found under them.
    mappings = (
        read_mappings(source if source.is_dir() else source.parent) if kind == "rows" else None
    )
    report = write_dataset(
        folder,
        rows,
        rejected,
        title="Imported planning problems in PDDL with reference plans",
        command="python -m jaxppo.planning import --config config.yaml",
        mappings=mappings,
        figures=figures,
        use_val=config.use_val,
        workers=config.planners.workers,
    )
    show_report(report, folder, terminal)
    return report


def _import(
    config: ImportConfig, source: Path, kind: str, terminal: Terminal
) -> tuple[dict[str, list[Row]], list[Rejected], dict[str, Any]]:
    """Make the rows of every split, the list of what was left out, and figures for the report.

    Each stage passes on what can still become a row, in the order of the source, and adds the others to `rejected`.
    """
    pddl_dir = source if config.pddl_dir is None else Path(config.pddl_dir)
    # As a list, so that the progress bar knows how many there are.
    readings = list(_READERS[kind](source, pddl_dir))
    rejected: list[Rejected] = []
    problems = _check(readings, config, terminal, rejected)
    solved = _solve(problems, config, terminal, rejected)
    with terminal.progress(len(solved), "compare") as progress:
        splits, not_placed = assign_splits(solved, config, progress.update)
    rejected += not_placed
    rows = _rows(splits, config, rejected)
    # An import of nothing is refused before the long
    # stages, with the reason that it most likely has.
    if not rows:
        first = f"{rejected[0].source}: {rejected[0].reason}" if rejected else "none at all"
        raise DataError(
            f"source: expected a problem that can become a row in {source}, got {len(rejected)} rejected: {first}"
        )
    if config.n_renamings and "train" in rows:
        rows["train"] = _with_renamings(rows["train"], config.n_renamings, rejected)
    return rows, rejected, _figures(config, kind, problems, solved)


# ----------------------------------------------------------------------------------------------------------- settings


def _source(config: ImportConfig) -> Path:
    if config.source is None or not Path(config.source).exists():
        raise ConfigError(f"source: expected an existing file or folder, got {config.source!r}")
    return Path(config.source)


def _kind_of(source: Path) -> str:
    """Recognise the kind of a source by its files, the most particular kind first."""
    # A data set of ours also has files of JSON, and PlanBench's folder also has PDDL.
    if split_files(source):
        return "rows"
    if any(
        first_row(path).keys() >= PAPER_COLUMNS.keys() for path in list_files(source, "*.jsonl")
    ):
        return "paper"
    if any(is_planbench(path) for path in list_files(source, "*.json")):
        return "planbench"
    if source.is_dir() and any(path.suffix.lower() == ".pddl" for path in source.rglob("*")):
        return "pddl"
    raise ConfigError(
        "source: expected a folder of PDDL files, or JSON of PlanBench, of the paper or of our own rows, "
        f"got {source}; --kind says what it should be"
    )


def _check_settings(config: ImportConfig, source: Path, kind: str) -> None:
    if kind == "pddl" and not source.is_dir():
        raise ConfigError(f"source: expected a folder for kind pddl, got the file {source}")
    if config.pddl_dir is not None and not Path(config.pddl_dir).is_dir():
        raise ConfigError(f"pddl_dir: expected a folder, got {config.pddl_dir!r}")
    if kind in ("planbench", "paper") and config.pddl_dir is None and not source.is_dir():
        raise ConfigError(
            f"pddl_dir: expected the folder with the PDDL files of {source}, got nothing"
        )
    if config.split == KEEP and kind != "rows":
        raise ConfigError(
            f"split: expected auto or the name of a split for kind {kind}, got {KEEP!r}"
        )
    # The written rows would be part of the source when the import is continued.
    if source.is_dir() and Path(config.output_dir).resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"output_dir: expected a folder outside the source {source}, got {config.output_dir}"
        )
    if config.planners.planner != NO_PLANNER:
        # Asking for its version raises the error of an unknown or missing planner.
        planner_version(config.planners.planner)
    elif config.replace_invalid_plans:
        raise ConfigError("replace_invalid_plans: expected False with planner none, got True")
    check_val(config.use_val)


# ------------------------------------------------------------------------------------------------------------ problems


def _check(
    readings: Sequence[SourceProblem | Rejected],
    config: ImportConfig,
    terminal: Terminal,
    rejected: list[Rejected],
) -> list[SourceProblem]:
    """Return the problems that can be a row or planned for, with the valid ones of their plans, which may be none."""
    problems: list[SourceProblem] = []
    with terminal.progress(len(readings), "check") as progress:
        for number, reading in enumerate(readings, 1):
            if isinstance(reading, SourceProblem):
                reading = _with_valid_plans(reading, config)
            if isinstance(reading, Rejected):
                rejected.append(reading)
            else:
                problems.append(reading)
            progress.update(number, rejected=len(rejected))
    return problems


def _with_valid_plans(problem: SourceProblem, config: ImportConfig) -> SourceProblem | Rejected:
    reason = problem_objection(problem.domain_pddl, problem.problem_pddl)
    if reason is not None:
        return problem.rejected(reason)
    valid_plans = []
    objections = []
    for plan in problem.plans:
        objection = plan_objection(problem.domain_pddl, problem.problem_pddl, plan)
        if objection is None:
            valid_plans.append(plan)
        else:
            objections.append(objection)
    # Rows of one problem bring several plans; one that is valid is enough.
    if not valid_plans:
        reason = objections[0] if objections else problem.plan_error
        if reason is not None and not config.replace_invalid_plans:
            return problem.rejected(reason)
        if config.planners.planner == NO_PLANNER:
            return problem.rejected(
                "no plan: expected one in the source with planner none, got none"
            )
    return problem._replace(plans=tuple(valid_plans))


def _solve(
    problems: Sequence[SourceProblem],
    config: ImportConfig,
    terminal: Terminal,
    rejected: list[Rejected],
) -> list[SourceProblem]:
    """Have the planner find the plans that are missing, and keep the order of the source."""
    unsolved = [problem for problem in problems if not problem.plans]
    if not unsolved:
        return list(problems)
    tasks = [
        PlanTask(problem.id, problem.domain_pddl, problem.problem_pddl) for problem in unsolved
    ]
    with terminal.progress(len(unsolved), "plan") as progress:
        results = []
        for result in solve_tasks(tasks, config):
            results.append(result)
            progress.update(len(results))
    next_result = iter(results)  # in the order of the unsolved problems
    solved: list[SourceProblem] = []
    for problem in problems:
        if problem.plans:
            solved.append(problem)
            continue
        result = next(next_result)
        if result.plan is None:
            rejected.append(problem.rejected(result.reason or "no plan"))
        else:
            solved.append(problem._replace(plans=(result.plan,), planner=result.planner))
    return solved


# ---------------------------------------------------------------------------------------------------------------- rows


def _rows(
    splits: Mapping[str, Sequence[SourceProblem]], config: ImportConfig, rejected: list[Rejected]
) -> dict[str, list[Row]]:
    """Make the rows of every split, without the problems that the prompt style cannot write."""
    rows: dict[str, list[Row]] = {}
    for split, problems in splits.items():
        for problem in problems:
            try:
                row = make_row(
                    id=problem.id,
                    domain=problem.domain,
                    split=split,
                    domain_pddl=problem.domain_pddl,
                    problem_pddl=problem.problem_pddl,
                    plans=problem.plans,
                    prompt_style=config.prompt_style,
                    planner=problem.planner,
                    **problem.columns,
                )
            except (DataError, PddlError) as error:
                rejected.append(problem._replace(split=split).rejected(f"prompt style: {error}"))
            else:
                rows.setdefault(split, []).append(row)
    return rows


def _with_renamings(rows: Sequence[Row], count: int, rejected: list[Rejected]) -> list[Row]:
    """Add after each row so many with other names out of those that objects of its domain have in these rows.

    With few names some copies have the prompt of another row: those are left out, as are those whose id is taken. A
    problem whose objects can have no other names is rejected as a copy; the row itself stays.
    """
    # The new names are those of all problems of a domain in
    # these rows, so that no copy has a word that no prompt has.
    pools = {domain: pools_of(problems) for domain, problems in problems_by_domain(rows).items()}
    prompts = {row["prompt"] for row in rows}
    ids = {row["id"] for row in rows}
    rows_and_copies: list[Row] = []
    for row in rows:
        rows_and_copies.append(row)
        try:
            for copy in renamed_rows(row, pools[row["domain"]], count, seed=0):
                if copy["prompt"] not in prompts and copy["id"] not in ids:
                    prompts.add(copy["prompt"])
                    rows_and_copies.append(copy)
        except ConfigError as error:
            rejected.append(
                Rejected(
                    row["id"], row["domain"], "train", row.get("source", ""), f"no copies: {error}"
                )
            )
    return rows_and_copies


def _figures(
    config: ImportConfig,
    kind: str,
    problems: Sequence[SourceProblem],
    solved: Sequence[SourceProblem],
) -> dict[str, Any]:
    # `problems` are those before planning, so a plan that one of them has came with it.
    n_with_plan = sum(bool(problem.plans) for problem in problems)
    n_planned = len(solved) - n_with_plan
    return {
        "settings": settings_of(config),
        "kind": kind,
        "plans": {
            "given": n_with_plan,
            "found": n_planned,
            "not found": len(problems) - len(solved),
        },
    }
