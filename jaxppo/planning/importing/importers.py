"""Problems that others made, as rows: read, checked, solved where they came without a plan, and split."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.errors import ConfigError, DataError, PddlError
from jaxppo.planning.datasets.config import ImportConfig
from jaxppo.planning.datasets.files import PAPER_COLUMNS, first_row, read_mappings, split_files
from jaxppo.planning.datasets.folder import Rejected, kind_of_reason, write_dataset
from jaxppo.planning.datasets.renamed_rows import pools_of, renamed_rows
from jaxppo.planning.datasets.rows import Row, make_row
from jaxppo.planning.datasets.runs import (
    NO_PLANNER,
    check_planners,
    claim_folder,
    command_line,
    is_finished,
    optimal_plans,
    plans_file,
    settings_of,
    show_report,
)
from jaxppo.planning.datasets.terminal import Terminal
from jaxppo.planning.importing.planbench import is_planbench, read_planbench
from jaxppo.planning.importing.rows import read_paper, read_rows
from jaxppo.planning.importing.source_problems import (
    Reading,
    SourceProblem,
    plan_objection,
    problem_objection,
    read_pddl,
)
from jaxppo.planning.importing.splits import KEEP, Solved, assign_splits
from jaxppo.planning.language.parse import Problem, parse_domain, parse_problem
from jaxppo.planning.language.plans import format_action
from jaxppo.planning.solve.planners import PLANNERS, PlanTask, find_plans
from jaxppo.planning.validate.validator import execute

_READERS: Mapping[str, Callable[[Path, Path], Reading]] = {
    "pddl": lambda source, _: read_pddl(source),
    "planbench": read_planbench,
    "paper": read_paper,
    "rows": lambda source, _: read_rows(source),
}

Found = Sequence[Solved | SourceProblem]
"""Problems in the order of the source, with or without a plan that a validator accepted."""


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
    source, folder = _source(config), Path(config.output_dir)
    kind = _kind_of(source) if config.kind == "auto" else config.kind
    _check_settings(config, source, kind)
    if is_finished(folder, config):
        terminal.result(f"finished: {folder} holds this data set; nothing was changed")
        return {}
    claim_folder(folder, config)
    rows, rejected, figures = _import(config, source, kind, terminal)
    terminal.print("checking and writing")
    report = write_dataset(
        folder,
        rows,
        rejected,
        file_format=config.file_format,
        title="Imported planning problems in PDDL with reference plans",
        command=command_line(config, "import"),
        mappings=read_mappings(source if source.is_dir() else source.parent) if kind == "rows" else None,
        figures=figures,
        use_val=config.use_val,
        workers=config.planners.workers,
    )
    show_report(report, folder, terminal)
    return report


def _import(
    config: ImportConfig, source: Path, kind: str, terminal: Terminal
) -> tuple[Mapping[str, list[Row]], list[Rejected], dict[str, Any]]:
    """Make the rows of every split, the list of what was left out, and figures for the report."""
    pddl_dir = Path(config.pddl_dir) if config.pddl_dir is not None else source
    found, rejected = _check(list(_READERS[kind](source, pddl_dir)), config, terminal)
    solved, unsolved = _solve(found, config, terminal)
    splits, left_out = _split(solved, config, terminal)
    rows, unwritable = _rows(splits, config)
    rejected += [*unsolved, *left_out, *unwritable]
    if not rows:
        raise DataError(f"source: expected a problem that can become a row in {source}, got {_summary(rejected)}")
    if config.n_renamings and "train" in rows:
        rows["train"], unnamed = _with_renamings(rows["train"], config.n_renamings)
        rejected += unnamed
    return _with_optimal_costs(rows, config, terminal), rejected, _figures(config, kind, found, solved)


# ----------------------------------------------------------------------------------------------------------- settings


def _source(config: ImportConfig) -> Path:
    if config.source is None or not Path(config.source).exists():
        raise ConfigError(f"source: expected an existing file or folder, got {config.source!r}")
    return Path(config.source)


def _kind_of(source: Path) -> str:
    """Recognise the kind of a source by its files."""
    if split_files(source):
        return "rows"
    lines = [source] if source.is_file() else source.rglob("*.jsonl")
    if any(first_row(path).keys() >= PAPER_COLUMNS.keys() for path in lines):
        return "paper"
    objects = [source] if source.is_file() else source.rglob("*.json")
    if any(is_planbench(path) for path in objects):
        return "planbench"
    if source.is_dir() and any(path.suffix.lower() == ".pddl" for path in source.rglob("*")):
        return "pddl"
    expected = "a folder of PDDL files, or JSON of PlanBench, of the paper or of our own rows"
    raise ConfigError(f"source: expected {expected}, got {source}; --kind says what it should be")


def _check_settings(config: ImportConfig, source: Path, kind: str) -> None:
    if kind == "pddl" and not source.is_dir():
        raise ConfigError(f"source: expected a folder for kind pddl, got the file {source}")
    if config.pddl_dir is not None and not Path(config.pddl_dir).is_dir():
        raise ConfigError(f"pddl_dir: expected a folder, got {config.pddl_dir!r}")
    if kind in ("planbench", "paper") and config.pddl_dir is None and not source.is_dir():
        raise ConfigError(f"pddl_dir: expected the folder with the PDDL files of {source}, got nothing")
    if config.split == KEEP and kind != "rows":
        raise ConfigError(f"split: expected auto or the name of a split for kind {kind}, got {KEEP!r}")
    if source.is_dir() and Path(config.output_dir).resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"output_dir: expected a folder outside the source {source}, got {config.output_dir}")
    if config.planners.planner == NO_PLANNER and config.replace_invalid_plans:
        raise ConfigError("replace_invalid_plans: expected False with planner none, got True")
    check_planners(config.planners, config.use_val)


# ------------------------------------------------------------------------------------------------------------ problems


def _check(
    readings: Sequence[SourceProblem | Rejected], config: ImportConfig, terminal: Terminal
) -> tuple[Found, list[Rejected]]:
    """Validate the plans that came with the problems; what can be neither a row nor planned for is rejected."""
    found: list[Solved | SourceProblem] = []
    rejected: list[Rejected] = []
    with terminal.progress(len(readings), "check") as progress:
        for number, reading in enumerate(readings, 1):
            checked = reading if isinstance(reading, Rejected) else _checked(reading, config)
            if isinstance(checked, Rejected):
                rejected.append(checked)
            else:
                found.append(checked)
            progress.update(number, rejected=len(rejected))
    return found, rejected


def _checked(problem: SourceProblem, config: ImportConfig) -> Solved | SourceProblem | Rejected:
    reason = problem_objection(problem.domain_pddl, problem.problem_pddl)
    if reason is not None:
        return problem.rejected(reason)
    objections = [plan_objection(problem.domain_pddl, problem.problem_pddl, plan) for plan in problem.plans]
    valid = tuple(plan for plan, reason in zip(problem.plans, objections, strict=True) if reason is None)
    if valid:
        return Solved(problem, valid, problem.planner)
    reason = next((reason for reason in objections if reason is not None), problem.plan_error)
    if reason is not None and not config.replace_invalid_plans:
        return problem.rejected(reason)
    if config.planners.planner == NO_PLANNER:
        return problem.rejected("no plan: expected one in the source with planner none, got none")
    return problem


def _solve(found: Found, config: ImportConfig, terminal: Terminal) -> tuple[list[Solved], list[Rejected]]:
    """Have the planner find what is missing, and keep the order of the source."""
    unsolved = [problem for problem in found if isinstance(problem, SourceProblem)]
    plans: dict[int, Solved] = {}
    rejected: list[Rejected] = []
    if unsolved:
        with terminal.progress(len(unsolved), "plan") as progress:
            tasks = [PlanTask(problem.id, problem.domain_pddl, problem.problem_pddl) for problem in unsolved]
            results = find_plans(
                tasks,
                planner=config.planners.planner,
                timeout_s=config.planners.planner_timeout_s,
                workers=config.planners.workers,
                cache=plans_file(Path(config.output_dir), config.planners),
                progress=lambda done, _: progress.update(done),
            )
            for problem, result in zip(unsolved, results, strict=True):
                if result.plan is None:
                    rejected.append(problem.rejected(result.reason or "no plan"))
                else:
                    plans[id(problem)] = Solved(problem, (result.plan,), result.planner)
    solved = [one if isinstance(one, Solved) else plans.get(id(one)) for one in found]
    return [one for one in solved if one is not None], rejected


def _split(
    solved: Sequence[Solved], config: ImportConfig, terminal: Terminal
) -> tuple[dict[str, list[Solved]], list[Rejected]]:
    with terminal.progress(len(solved), "compare") as progress:
        return assign_splits(solved, config, progress.update)


# ---------------------------------------------------------------------------------------------------------------- rows


def _rows(splits: Mapping[str, Sequence[Solved]], config: ImportConfig) -> tuple[dict[str, list[Row]], list[Rejected]]:
    """Make the rows of every split, and list the problems that the prompt style cannot write."""
    rows: dict[str, list[Row]] = {}
    rejected: list[Rejected] = []
    for split, solved in splits.items():
        for one in solved:
            try:
                rows.setdefault(split, []).append(_row(one, split, config))
            except (DataError, PddlError) as error:
                rejected.append(one.problem._replace(split=split).rejected(f"prompt style: {error}"))
    return rows, rejected


def _row(solved: Solved, split: str, config: ImportConfig) -> Row:
    problem = solved.problem
    row = make_row(
        id=problem.id,
        domain=problem.domain,
        split=split,
        domain_pddl=problem.domain_pddl,
        problem_pddl=problem.problem_pddl,
        plan=solved.plans[0],
        prompt_style=config.prompt_style,
        planner=solved.planner,
        **problem.columns,
    )
    if len(solved.plans) > 1:
        row["reference_plan"] = [list(map(format_action, plan)) for plan in solved.plans]
    return row


def _with_renamings(rows: Sequence[Row], count: int) -> tuple[list[Row], list[Rejected]]:
    """Add behind each row so many with other names out of those that objects of its domain have in these rows.

    With few names some copies have the prompt of another row: those are left out, as are those whose id is taken. A
    problem whose objects can have no other names is rejected as a copy; the row itself stays.
    """
    problems: dict[str, list[Problem]] = {}
    for row in rows:
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        problems.setdefault(row["domain"], []).append(problem)
    pools = {domain: pools_of(own) for domain, own in problems.items()}
    prompts, ids = {row["prompt"] for row in rows}, {row["id"] for row in rows}
    together: list[Row] = []
    rejected: list[Rejected] = []
    for row in rows:
        together.append(row)
        try:
            for copy in renamed_rows(row, pools[row["domain"]], count, seed=0):
                if copy["prompt"] not in prompts and copy["id"] not in ids:
                    prompts.add(copy["prompt"])
                    together.append(copy)
        except ConfigError as error:
            rejected.append(Rejected(row["id"], row["domain"], "train", row.get("source", ""), f"no copies: {error}"))
    return together, rejected


def _with_optimal_costs(
    rows: Mapping[str, list[Row]], config: ImportConfig, terminal: Terminal
) -> Mapping[str, list[Row]]:
    """Add the column `optimal_cost`: what an optimal plan costs, None where the optimal planner found none."""
    every, planner = [row for own in rows.values() for row in own], config.planners.optimal_planner
    if planner is None:
        return rows
    plans = plans_file(Path(config.output_dir), config.planners)
    for row, plan in zip(every, optimal_plans(every, planner, config.planners, plans, terminal), strict=True):
        problem = parse_problem(row["problem_pddl"], parse_domain(row["domain_pddl"]))
        row["optimal_cost"] = None if plan is None else execute(problem, plan).cost
    return rows


def _summary(rejected: Sequence[Rejected]) -> str:
    """Say how many problems were left out for which reason, and show the first of them."""
    if not rejected:
        return "none at all"
    counts = Counter(kind_of_reason(entry.reason) for entry in rejected)
    kinds = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    return f"only rejected ones ({kinds}); the first is {rejected[0].source}: {rejected[0].reason}"


def _figures(config: ImportConfig, kind: str, found: Found, solved: Sequence[Solved]) -> dict[str, Any]:
    given = sum(isinstance(one, Solved) for one in found)
    names = [config.planners.planner] if len(solved) > given else []
    names += [config.planners.optimal_planner] if config.planners.optimal_planner is not None else []
    return {
        "settings": settings_of(config),
        "kind": kind,
        "plans": {"given": given, "found": len(solved) - given, "not found": len(found) - len(solved)},
        "planner_licences": {name: PLANNERS[name].licence for name in names},
    }
