"""Planning data from our own generators: solved, split without leaks, the same files from the same settings."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median_low
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.candidates import (
    PROBLEM_NAME,
    Attempt,
    Candidate,
    SplitBuilder,
    SplitSpec,
)
from jaxppo.planning.datasets.config import BuildConfig, parse_domain_sizes, parse_lengths
from jaxppo.planning.datasets.folder import Rejected, write_dataset
from jaxppo.planning.datasets.renamed_rows import renamed_rows
from jaxppo.planning.datasets.rows import Row, make_row
from jaxppo.planning.datasets.runs import (
    check_val,
    claim_folder,
    settings_of,
    show_report,
    solve_tasks,
)
from jaxppo.planning.datasets.terminal import ProgressBar, Terminal
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.language.plans import parse_action
from jaxppo.planning.solve.planners import PlanTask, planner_version
from jaxppo.planning.transform.renaming import (
    OBFUSCATION_STYLES,
    choose_words,
    rename_plan,
    rename_words,
)

LICENCE = "apache-2.0"
"""Of the rows; a planner's own licence is that of its program and does not pass to its plans."""
# More objects than any problem has.
_ANY = 1_000_000

Words = dict[str, dict[str, dict[str, str]]]
"""Domain to style to the words of its obfuscation."""


def build_dataset(config: BuildConfig, terminal: Terminal) -> dict[str, Any]:
    """Make a data set, or continue one that was stopped; a finished one is left alone.

    Plans go to `plans.jsonl` as they are found, so that none is lost; the splits are written at the end. Settings that
    do not decide the rows (`workers`, `plans`) may differ between the calls.

    Args:
        config: the settings.
        terminal: where progress and results go.

    Returns:
        What `report.json` holds; {} where the data set was finished before.

    Raises:
        ConfigError: an unknown domain or planner, or a folder that holds something else.
        DataError: no problem was solved at all.
    """
    _check(config)
    folder = Path(config.output_dir)
    if not claim_folder(folder, config, terminal):
        return {}
    builders = _fill_splits(config, terminal)
    rows, words = _rows(config, builders)
    terminal.print("checking every reference plan, and writing")
    rejected: list[Rejected] = []
    for builder in builders:
        rejected.extend(_rejected(builder))
    report = write_dataset(
        folder,
        rows,
        rejected,
        title="Planning problems in PDDL with reference plans",
        command="python -m jaxppo.planning build --config config.yaml",
        licence=LICENCE,
        mappings=words,
        words=_all_names(config, words),
        figures=_figures(config, builders),
        use_val=config.use_val,
        workers=config.planners.workers,
    )
    show_report(report, folder, terminal)
    return report


def _check(config: BuildConfig) -> None:
    for field in ("domains", "unseen_domains"):
        for name in getattr(config, field):
            if name not in DOMAINS:
                raise ConfigError(f"{field}: expected some of {', '.join(DOMAINS)}, got {name!r}")
    for name, sizes in parse_domain_sizes(config.train_sizes).items():
        if name not in (*config.domains, *config.unseen_domains):
            raise ConfigError(
                f"train_sizes: expected a domain in use, got {name}:{sizes[0]}-{sizes[-1]}"
            )
        offered = DOMAINS[name].sizes
        if not set(sizes) <= set(offered):
            raise ConfigError(
                f"train_sizes: expected sizes {offered[0]} to {offered[-1]}, got {name}:{sizes[0]}-{sizes[-1]}"
            )
    # Asking for its version raises the error of an unknown or missing planner.
    planner_version(config.planners.planner)
    check_val(config.use_val)


# ------------------------------------------------------------------------------------------------------------ filling


def _fill_splits(config: BuildConfig, terminal: Terminal) -> list[SplitBuilder]:
    """Draw and solve until every split is full or given up.

    The splits test_longer and test_larger come last: their bounds on objects, and the problems that they may not have,
    depend on the rows of their domain's other splits.
    """
    builders = [SplitBuilder(spec) for spec in _first_specs(config)]
    later_domains = config.domains if config.n_test else ()
    total = sum(builder.spec.n_rows for builder in builders) + 2 * config.n_test * len(
        later_domains
    )
    terminal.print(
        f"{total} rows wanted, into {config.output_dir}; after a stop, run the same command again"
    )
    with terminal.progress(total, "build", unit="row") as progress:
        _fill(config, builders, progress)
        later_specs: list[SplitSpec] = []
        for name in later_domains:
            later_specs += _later_specs(config, name, builders)
        builders += map(SplitBuilder, later_specs)
        _fill(config, builders, progress)
    # Rows come in the order of the settings, domain by domain.
    order = [*config.domains, *config.unseen_domains]
    return sorted(builders, key=lambda builder: order.index(builder.spec.domain.name))


def _fill(config: BuildConfig, builders: Sequence[SplitBuilder], progress: ProgressBar) -> None:
    """Draw candidates for every split that wants more rows, and solve them at once, round after round.

    All splits take part in a round, so that the planners' processes are busy.
    """
    while True:
        batch: list[tuple[SplitBuilder, Candidate]] = []
        for builder in builders:
            if builder.is_open:
                batch += [(builder, candidate) for candidate in builder.draw()]
        if not batch:
            return
        _solve(config, batch, builders, progress)


def _first_specs(config: BuildConfig) -> Iterator[SplitSpec]:
    """Yield the specs of splits that depend on no other one."""
    n_rows_by_split = {"train": config.n_train, "rl": config.n_rl, "test": config.n_test}
    splits = []
    for name in config.domains:
        splits += [(name, split, n_rows) for split, n_rows in n_rows_by_split.items()]
    splits += [(name, "test_unseen", config.n_test) for name in config.unseen_domains]
    for name, split, n_rows in splits:
        if n_rows:
            lengths = config.rl_lengths if split == "rl" else None
            yield SplitSpec(
                domain=DOMAINS[name],
                split=split,
                n_rows=n_rows,
                sizes=_train_sizes(config, name),
                lengths=(parse_lengths(lengths or config.short_lengths),),
                n_objects=range(_ANY),
                seed=config.seed,
            )


def _train_sizes(config: BuildConfig, name: str) -> range:
    return parse_domain_sizes(config.train_sizes).get(name, DOMAINS[name].train_sizes)


def _later_specs(
    config: BuildConfig, name: str, builders: Sequence[SplitBuilder]
) -> Iterator[SplitSpec]:
    """Yield the specs for longer plans with no more objects than before, and for more objects than before."""
    max_objects = 0
    test_forms: set[str] = set()
    for builder in builders:
        if builder.spec.domain.name == name:
            for candidate, _ in builder.accepted:
                max_objects = max(max_objects, candidate.n_objects)
                # All test splits draw from one partition, so only
                # these could share a problem with the new ones.
                if builder.spec.split == "test":
                    test_forms.add(candidate.form)
    short = parse_lengths(config.short_lengths)
    long = parse_lengths(config.long_lengths)
    domain = DOMAINS[name]
    train_sizes = _train_sizes(config, name)
    # Larger sizes begin above those of train, and end where the domain's do; there is always one.
    first_larger = min(train_sizes[-1] + 1, domain.sizes[-1])
    end = max(domain.larger_sizes[-1], first_larger) + 1
    # Plans that are long for their objects are found among the sizes from the middle of train's.
    longer = ("test_longer", range(median_low(train_sizes), end), (long,), range(max_objects + 1))
    larger = ("test_larger", range(first_larger, end), (short, long), range(max_objects + 1, _ANY))
    for split, sizes, lengths, n_objects in (longer, larger):
        yield SplitSpec(
            domain=domain,
            split=split,
            n_rows=config.n_test,
            sizes=sizes,
            lengths=lengths,
            n_objects=n_objects,
            seed=config.seed,
            excluded_forms=frozenset(test_forms),
        )


def _solve(
    config: BuildConfig,
    batch: Sequence[tuple[SplitBuilder, Candidate]],
    builders: Sequence[SplitBuilder],
    progress: ProgressBar,
) -> None:
    """Let the planners solve a batch, and the splits take what fits."""
    # The id has no part in the plan: results are kept in a file by the text of the problem.
    tasks = []
    for builder, candidate in batch:
        spec = builder.spec
        task_id = f"{spec.domain.name}-{spec.split}-{candidate.number}"
        tasks.append(PlanTask(task_id, spec.domain.pddl, candidate.problem_pddl))
    # In the order of the batch, which is that of each split's stream.
    for (builder, candidate), result in zip(batch, solve_tasks(tasks, config), strict=True):
        if builder.take(Attempt(candidate, result)):
            spec = builder.spec
            n_full = sum(not any_builder.n_missing for any_builder in builders)
            progress.update(
                sum(len(any_builder.accepted) for any_builder in builders),
                **{f"{spec.domain.name} {spec.split}": f"{len(builder.accepted)}/{spec.n_rows}"},
                full=f"{n_full}/{len(builders)}",
            )


# --------------------------------------------------------------------------------------------------------------- rows


def _rows(
    config: BuildConfig, builders: Sequence[SplitBuilder]
) -> tuple[dict[str, list[Row]], Words]:
    """Return the rows of every split, and the words of the obfuscations."""
    rows: dict[str, list[Row]] = {}
    words: Words = {}
    for builder in builders:
        spec = builder.spec
        split_rows = rows.setdefault(spec.split, [])
        for number, attempt in enumerate(builder.accepted):
            row = _row(spec, number, attempt, config.prompt_style)
            split_rows.append(row)
            if spec.split == "train":
                split_rows.extend(
                    renamed_rows(row, spec.domain.pools, config.n_renamings, spec.seed)
                )
    for name in config.domains:
        test_rows = [row for row in rows.get("test", []) if row["domain"] == name]
        if test_rows:
            words[name] = {
                style: _obfuscation(name, style, config.seed) for style in OBFUSCATION_STYLES
            }
            rows.setdefault("test_obfuscated", []).extend(_obfuscated_rows(test_rows, words[name]))
    return rows, words


def _row(spec: SplitSpec, number: int, attempt: Attempt, prompt_style: str) -> Row:
    assert attempt.result.plan is not None
    return make_row(
        id=f"{spec.domain.name}-{spec.split}-{number:05d}",
        domain=spec.domain.name,
        split=spec.split,
        domain_pddl=spec.domain.pddl,
        problem_pddl=attempt.candidate.problem_pddl,
        plans=[attempt.result.plan],
        prompt_style=prompt_style,
        planner=attempt.result.planner,
        obfuscation=None,
        paired_id=None,
    )


def _obfuscation(name: str, style: str, seed: int) -> dict[str, str]:
    """Choose other words for all that the problems of a domain may say."""
    # Every object of the pools: so one mapping serves all problems of the domain.
    domain = DOMAINS[name]
    objects = sorted(set(chain.from_iterable(domain.pools.values())))
    rng = random.Random(f"{name}/{style}/{seed}")
    return choose_words(domain.pddl, [PROBLEM_NAME, *objects], style, rng)


def _obfuscated_rows(
    rows: Sequence[Row], mappings: Mapping[str, Mapping[str, str]]
) -> Iterator[Row]:
    """Yield the same problems and plans in other words; the styles take turns."""
    for number, row in enumerate(rows):
        style = list(mappings)[number % len(mappings)]
        mapping = mappings[style]
        yield make_row(
            id=row["id"].replace("-test-", "-test_obfuscated-"),
            domain=row["domain"],
            split="test_obfuscated",
            domain_pddl=rename_words(row["domain_pddl"], mapping),
            problem_pddl=rename_words(row["problem_pddl"], mapping),
            plans=[rename_plan(map(parse_action, row["reference_plan"]), mapping)],
            prompt_style=row["prompt_style"],
            planner=row["planner"],
            obfuscation=style,
            paired_id=row["id"],
        )


def _all_names(config: BuildConfig, words: Words) -> set[str]:
    """Return every name that a problem of the domains may use, in all words."""
    names: set[str] = set()
    for domain in (*config.domains, *config.unseen_domains):
        names.update(DOMAINS[domain].names)
    for domain, mappings in words.items():
        for mapping in mappings.values():
            names.update(mapping[name] for name in DOMAINS[domain].names)
    return names


# ------------------------------------------------------------------------------------------------------------- report


def _rejected(builder: SplitBuilder) -> Iterator[Rejected]:
    spec = builder.spec
    for candidate, result in builder.failed:
        source = f"size {candidate.size}, draw {candidate.number} of seed {spec.seed}"
        name = f"{spec.domain.name}-{spec.split}-draw-{candidate.number}"
        yield Rejected(name, spec.domain.name, spec.split, source, result.reason or "no plan")


def _figures(config: BuildConfig, builders: Sequence[SplitBuilder]) -> dict[str, Any]:
    shortfalls = []
    for builder in builders:
        spec = builder.spec
        if builder.n_missing:
            rows = f"{len(builder.accepted)} of {spec.n_rows} rows"
            shortfalls.append(
                f"{spec.split} of {spec.domain.name}: {rows}, as {builder.why_closed}"
            )
    return {"settings": settings_of(config), "shortfalls": shortfalls}
