"""Planning data from our own generators: solved, split without leaks, the same files from the same settings."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median_low
from typing import Any

from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.candidates import PROBLEM_NAME, Candidate, Solved, SplitBuilder, SplitSpec
from jaxppo.planning.datasets.config import BuildConfig, parse_domain_sizes, parse_lengths
from jaxppo.planning.datasets.folder import Rejected, write_dataset
from jaxppo.planning.datasets.renamed_rows import renamed_rows
from jaxppo.planning.datasets.rows import Row, make_row
from jaxppo.planning.datasets.runs import (
    check_planners,
    claim_folder,
    command_line,
    is_finished,
    optimal_plans,
    plans_file,
    settings_of,
    show_report,
)
from jaxppo.planning.datasets.terminal import Progress, Terminal
from jaxppo.planning.domains import DOMAINS
from jaxppo.planning.language.plans import Action, parse_action
from jaxppo.planning.solve.planners import PLANNERS, PlanTask, find_plans, planner_version
from jaxppo.planning.transform.renaming import OBFUSCATION_STYLES, obfuscate

LICENCE = "apache-2.0"
"""Of the rows; a planner's own licence is that of its program and does not pass to its plans."""
_ANY = 1_000_000
"""More objects than any problem has."""

Words = dict[str, dict[str, dict[str, str]]]
"""Domain to style to the words of its obfuscation."""


def build_dataset(config: BuildConfig, terminal: Terminal) -> dict[str, Any]:
    """Make a data set, or go on with one that was stopped; a finished one is left alone.

    Plans go to `plans.jsonl` at once; the splits are written at the end. Settings that only say how
    fast (`workers`, `plans`) may differ between the calls.

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
    if is_finished(folder, config):
        terminal.result(f"finished: {folder} holds this data set; nothing was changed")
        return {}
    claim_folder(folder, config)
    plans = plans_file(folder, config.planners)
    builders = _fill(config, plans, terminal)
    rows, words = _rows(config, builders)
    if config.planners.optimal_planner is not None:
        solved = [row for own in rows.values() for row in own if row["paired_id"] is None]
        optimal = optimal_plans(solved, config.planners.optimal_planner, config.planners, plans, terminal)
        rows = _with_optimal_costs(rows, {row["id"]: plan for row, plan in zip(solved, optimal, strict=True)})
    terminal.print("checking every reference plan, and writing")
    report = write_dataset(
        folder,
        rows,
        [entry for builder in builders for entry in _rejected(builder)],
        file_format=config.file_format,
        title="Planning problems in PDDL with reference plans",
        how=command_line(config, "build"),
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
        known = name in (*config.domains, *config.unseen_domains)
        if not known or not {*sizes} <= {*DOMAINS[name].sizes}:
            expected = f"sizes {DOMAINS[name].sizes[0]} to {DOMAINS[name].sizes[-1]}" if known else "a domain in use"
            raise ConfigError(f"train_sizes: expected {expected}, got {name}:{sizes[0]}-{sizes[-1]}")
    planner_version(config.planners.planner)  # here there has to be one
    check_planners(config.planners, config.use_val)


# ------------------------------------------------------------------------------------------------------------ filling


def _fill(config: BuildConfig, plans: Path, terminal: Terminal) -> list[SplitBuilder]:
    """Draw and solve in rounds until every split is full or given up."""
    builders = [SplitBuilder(spec) for spec in _first_specs(config)]
    waiting = [name for name in config.domains if config.n_test]
    total = sum(builder.spec.n_rows for builder in builders) + 2 * config.n_test * len(waiting)
    terminal.print(f"{total} rows wanted, into {config.output_dir}; after a stop, run the same command again")
    batch = _next_batch(config, waiting, builders)  # before the bar, which guesses the time left
    told: set[tuple[str, str]] = set()
    with terminal.progress(total, "build", unit="row") as progress:
        while batch:
            _solve(config, plans, batch, builders, progress)
            batch = _next_batch(config, waiting, builders)
            _tell_given_up(builders, told, terminal)
    order = [*config.domains, *config.unseen_domains]  # and not that in which splits became full
    return sorted(builders, key=lambda builder: order.index(builder.spec.domain.name))


def _tell_given_up(builders: Sequence[SplitBuilder], told: set[tuple[str, str]], terminal: Terminal) -> None:
    """Say of each split that stays short, once, why."""
    for builder in builders:
        name = builder.spec.domain.name, builder.spec.split
        if not builder.is_open and builder.n_missing and name not in told:
            told.add(name)
            terminal.print(
                f"{name[1]} of {name[0]}: {builder.why_closed}; {len(builder.accepted)} of {builder.spec.n_rows} rows"
            )


def _next_batch(
    config: BuildConfig, waiting: list[str], builders: list[SplitBuilder]
) -> list[tuple[SplitBuilder, Candidate]]:
    """Draw candidates for splits that want more rows; those of `waiting` begin when their domain's others are done."""
    while True:
        for name in [name for name in waiting if not _is_open(builders, name)]:
            waiting.remove(name)
            builders += map(SplitBuilder, _later_specs(config, name, builders))
        batch = [(builder, candidate) for builder in builders if builder.is_open for candidate in builder.draw()]
        if batch or not waiting:
            return batch


def _is_open(builders: Sequence[SplitBuilder], name: str) -> bool:
    return any(builder.is_open for builder in builders if builder.spec.domain.name == name)


def _first_specs(config: BuildConfig) -> Iterator[SplitSpec]:
    """Yield the specs of splits that depend on no other one."""
    counts = {"train": config.n_train, "rl": config.n_rl, "test": config.n_test}
    wanted = [(name, split, count) for name in config.domains for split, count in counts.items()]
    wanted += [(name, "test_unseen", config.n_test) for name in config.unseen_domains]
    for name, split, count in wanted:
        if count:
            lengths = config.rl_lengths if split == "rl" else None
            yield SplitSpec(
                domain=DOMAINS[name],
                split=split,
                n_rows=count,
                sizes=_train_sizes(config, name),
                lengths=(parse_lengths(lengths or config.short_lengths),),
                n_objects=range(_ANY),
                seed=config.seed,
            )


def _train_sizes(config: BuildConfig, name: str) -> range:
    sizes = parse_domain_sizes(config.train_sizes)
    return sizes[name] if name in sizes else DOMAINS[name].train_sizes


def _later_specs(config: BuildConfig, name: str, builders: Sequence[SplitBuilder]) -> Iterator[SplitSpec]:
    """Yield the specs for longer plans with no more objects than before, and for more objects than before."""
    own = [builder for builder in builders if builder.spec.domain.name == name]
    most = max(chain.from_iterable(builder.object_counts() for builder in own), default=0)
    taken = frozenset(chain.from_iterable(builder.forms() for builder in own if builder.spec.split == "test"))
    short, long = parse_lengths(config.short_lengths), parse_lengths(config.long_lengths)
    domain, own_sizes = DOMAINS[name], _train_sizes(config, name)
    end = max(domain.larger_sizes[-1], min(own_sizes[-1] + 1, domain.sizes[-1])) + 1
    larger = range(min(own_sizes[-1] + 1, domain.sizes[-1]), end)
    for split, sizes, lengths, n_objects in (
        ("test_longer", range(median_low(own_sizes), end), (long,), range(most + 1)),
        ("test_larger", larger, (short, long), range(most + 1, _ANY)),
    ):
        yield SplitSpec(
            domain=domain,
            split=split,
            n_rows=config.n_test,
            sizes=sizes,
            lengths=lengths,
            n_objects=n_objects,
            seed=config.seed,
            taken=taken,
        )


def _solve(
    config: BuildConfig,
    plans: Path,
    batch: Sequence[tuple[SplitBuilder, Candidate]],
    builders: Sequence[SplitBuilder],
    progress: Progress,
) -> None:
    """Call the planners once more."""
    tasks = [
        PlanTask(
            f"{builder.spec.domain.name}-{builder.spec.split}-{candidate.number}",
            builder.spec.domain.pddl,
            candidate.problem_pddl,
        )
        for builder, candidate in batch
    ]
    results = find_plans(
        tasks,
        planner=config.planners.planner,
        timeout_s=config.planners.planner_timeout_s,
        workers=config.planners.workers,
        cache=plans,
    )
    done = sum(len(builder.accepted) for builder in builders)
    for (builder, candidate), result in zip(batch, results, strict=True):
        if builder.take(Solved(candidate, result)):
            done += 1
            spec, n_full = builder.spec, sum(not other.n_missing for other in builders)
            progress.update(
                done,
                **{f"{spec.domain.name} {spec.split}": f"{len(builder.accepted)}/{spec.n_rows}"},
                full=f"{n_full}/{len(builders)}",
            )


# --------------------------------------------------------------------------------------------------------------- rows


def _rows(config: BuildConfig, builders: Sequence[SplitBuilder]) -> tuple[dict[str, list[Row]], Words]:
    """Return the rows of every split, and the words of the obfuscations."""
    rows: dict[str, list[Row]] = {}
    words: Words = {}
    for builder in builders:
        own = [
            _row(builder.spec, number, solved, config.prompt_style) for number, solved in enumerate(builder.accepted)
        ]
        if builder.spec.split == "train":
            pools, count = builder.spec.domain.pools, config.n_renamings
            own = [same for row in own for same in (row, *renamed_rows(row, pools, count, builder.spec.seed))]
        rows.setdefault(builder.spec.split, []).extend(own)
    for name in config.domains if config.obfuscated_domains is None else config.obfuscated_domains:
        own = [row for row in rows.get("test", []) if row["domain"] == name]
        if own:
            words[name] = {style: _obfuscation(name, style, config.seed) for style in _styles(config)}
            rows.setdefault("test_obfuscated", []).extend(_in_other_words(own, words[name]))
    return rows, words


def _row(spec: SplitSpec, number: int, solved: Solved, prompt_style: str) -> Row:
    assert solved.result.plan is not None
    return make_row(
        id=f"{spec.domain.name}-{spec.split}-{number:05d}",
        domain=spec.domain.name,
        split=spec.split,
        domain_pddl=spec.domain.pddl,
        problem_pddl=solved.candidate.problem_pddl,
        plan=solved.result.plan,
        prompt_style=prompt_style,
        planner=solved.result.planner,
        obfuscation=None,
        paired_id=None,
    )


def _styles(config: BuildConfig) -> tuple[str, ...]:
    return OBFUSCATION_STYLES if config.obfuscation == "both" else (config.obfuscation,)


def _obfuscation(name: str, style: str, seed: int) -> dict[str, str]:
    """Choose other words for all that the problems of a domain may say."""
    domain = DOMAINS[name]
    objects = " ".join(sorted({word for pool in domain.pools.values() for word in pool}))
    everything = f"(define (problem {PROBLEM_NAME}) (:domain {name}) (:objects {objects}) (:init) (:goal (and)))"
    rng = random.Random(f"{name}/{style}/{seed}")
    return dict(obfuscate(domain.pddl, everything, (), style, rng=rng).mapping)


def _in_other_words(rows: Sequence[Row], mappings: Mapping[str, Mapping[str, str]]) -> Iterator[Row]:
    """Yield the same problems and plans in other words; several styles take turns."""
    for number, row in enumerate(rows):
        style = list(mappings)[number % len(mappings)]
        plan = tuple(map(parse_action, row["reference_plan"]))
        rng = random.Random(row["id"])
        other = obfuscate(row["domain_pddl"], row["problem_pddl"], plan, style, rng=rng, mapping=mappings[style])
        yield make_row(
            id=row["id"].replace("-test-", "-test_obfuscated-"),
            domain=row["domain"],
            split="test_obfuscated",
            domain_pddl=other.domain_pddl,
            problem_pddl=other.problem_pddl,
            plan=other.plan,
            prompt_style=row["prompt_style"],
            planner=row["planner"],
            obfuscation=style,
            paired_id=row["id"],
        )


def _with_optimal_costs(
    rows: Mapping[str, list[Row]], found: Mapping[str, tuple[Action, ...] | None]
) -> dict[str, list[Row]]:
    """Add the column `optimal_cost`: steps of an optimal plan, None where the optimal planner found none."""
    costs = {name: None if plan is None else len(plan) for name, plan in found.items()}
    return {
        split: [{**row, "optimal_cost": costs[row["paired_id"] or row["id"]]} for row in own]
        for split, own in rows.items()
    }


def _all_names(config: BuildConfig, words: Words) -> set[str]:
    """Return every name that a problem of the domains may use, in all words."""
    plain = {name for domain in (*config.domains, *config.unseen_domains) for name in DOMAINS[domain].names}
    mappings = [(DOMAINS[domain].names, mapping) for domain, styles in words.items() for mapping in styles.values()]
    other = {mapping[name] for names, mapping in mappings for name in names}
    return plain | other


# ------------------------------------------------------------------------------------------------------------- report


def _rejected(builder: SplitBuilder) -> Iterator[Rejected]:
    spec = builder.spec
    for candidate, result in builder.failed:
        source = f"size {candidate.size}, draw {candidate.number} of seed {spec.seed}"
        name = f"{spec.domain.name}-{spec.split}-draw-{candidate.number}"
        yield Rejected(name, spec.domain.name, spec.split, source, result.reason or "no plan")


def _figures(config: BuildConfig, builders: Sequence[SplitBuilder]) -> dict[str, Any]:
    draws: dict[str, dict[str, Any]] = {}
    for builder in builders:
        draws.setdefault(builder.spec.split, {})[builder.spec.domain.name] = builder.figures()
    names = dict.fromkeys([config.planners.planner, config.planners.optimal_planner])
    return {
        "settings": settings_of(config),
        "draws": draws,
        "shortfalls": [
            f"{builder.spec.split} of {builder.spec.domain.name}: {len(builder.accepted)} of {builder.spec.n_rows} rows"
            for builder in builders
            if builder.n_missing
        ],
        "planner_licences": {name: PLANNERS[name].licence for name in names if name is not None},
    }
