"""Plants defects, one at a time, in a copy of the package, and sees whether the tests catch them.

    python runs/defects.py [--only NAME ...] [--jobs 2] [--checkout DIR] [--marks "full or not full"] [--json FILE]

`defects.toml` lists them, each with the tests that should see it. Those that failed run once more in the end, without
any defect, and must pass: otherwise their failure means nothing. With `--checkout`, the same list is tried on the tests
of another version.

    caught    a test failed
    missed    all tests passed
    stale     the text to change is not in the file, or more than once: the list has to follow the package
    broken    no verdict: pytest could not run the tests or found none, or the test fails without the defect, too

One line for each as it is done, and a table at the end; exit status 1 unless all are caught. `--dry_run` only looks for
the texts.
"""

import argparse
import contextlib
import getpass
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).resolve().with_name("defects.toml")

CAUGHT, MISSED, STALE, BROKEN = STATUSES = ("caught", "missed", "stale", "broken")
COPIED = ("jaxppo", "tests", "pyproject.toml")
"""What a copy of a checkout has for its own; the rest is linked."""
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".hypothesis", ".git")
TIMEOUT_S = 900.0
"""For the tests of one defect."""
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (tests/[^:\s]+(?:::\w+)+)", re.MULTILINE)
"""A line of pytest's summary: file and function of a test, without its parameters, which may hold anything."""


class Defect(NamedTuple):
    """An entry of the list."""

    name: str
    area: str
    about: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    # Which of the tests, as for pytest's -m; None: those that it runs by default
    marks: str | None = None

    @property
    def room(self) -> str:
        """The room of the package that it is planted in, or the module at its top."""
        return Path(self.file).parts[1].removesuffix(".py")

    def count_in(self, checkout: Path) -> int:
        """How often the text to change is in its file."""
        path = checkout / self.file
        return path.read_text(encoding="utf-8").count(self.before) if path.is_file() else 0


class Outcome(NamedTuple):
    """What became of a defect."""

    defect: Defect
    status: str
    seconds: float
    note: str  # the first test that failed; or why there is no verdict

    def line(self) -> str:
        """One line for the terminal."""
        return f"{self.status:7} {self.seconds:6.1f} s  {self.defect.name}  {self.note}".rstrip()

    def record(self) -> dict[str, object]:
        """One entry of the JSON file."""
        defect = self.defect
        place = {"name": defect.name, "area": defect.area, "room": defect.room, "file": defect.file}
        return place | {"status": self.status, "seconds": round(self.seconds, 1), "note": self.note}


class PytestRun(NamedTuple):
    """How pytest ended; the status is None where it was stopped because it took too long."""

    status: int | None
    output: str
    seconds: float


def read_defects() -> list[Defect]:
    """Read the entries `[[defect]]` of the list."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["defect"]
    return [Defect(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]


def select(defects: Sequence[Defect], names: Sequence[str] | None) -> list[Defect]:
    """Return the defects of these names or areas; None: all."""
    if names is None:
        return list(defects)
    unknown = set(names) - {defect.name for defect in defects} - {defect.area for defect in defects}
    if unknown:
        raise SystemExit(
            f"--only: expected names or areas of {LIST.name}, got {', '.join(sorted(unknown))}"
        )
    return [defect for defect in defects if defect.name in names or defect.area in names]


# --------------------------------------------------------------------------------------------------- copy of a checkout


class Copy:
    """A checkout whose package may be changed, and whose tests are run on it.

    Args:
        checkout: what is copied.
        folder: gets the copy.
    """

    def __init__(self, checkout: Path, folder: Path):
        self._root, self._cache = folder / "checkout", folder / "cache"
        self._root.mkdir(parents=True)
        skipped = NOT_COPIED(str(checkout), [path.name for path in checkout.iterdir()])
        for path in checkout.iterdir():
            target = self._root / path.name
            if path.name in skipped:
                continue
            if path.name not in COPIED:
                target.symlink_to(path)
            elif path.is_dir():
                shutil.copytree(path, target, ignore=NOT_COPIED)
            else:
                shutil.copy2(path, target)
        # Some tests read data that lie beside the checkout.
        if (checkout.parent / "shared").is_dir():
            (folder / "shared").symlink_to(checkout.parent / "shared")
        self._seconds = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None
        self._check_import(folder)

    def _check_import(self, folder: Path) -> None:
        """End unless this copy's package is imported from another folder, too: one may be installed, and would win."""
        command = [sys.executable, "-c", "import jaxppo; print(jaxppo.__file__)"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        expected = self._root / "jaxppo" / "__init__.py"
        if done.stdout.strip() != str(expected):
            raise SystemExit(
                f"jaxppo: expected to be imported from {expected}, got {done.stdout}{done.stderr}"
            )

    @contextlib.contextmanager
    def planted(self, defect: Defect) -> Iterator[None]:
        """Change the package while the block runs."""
        path = self._root / defect.file
        text, original = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(text.replace(defect.before, defect.after), encoding="utf-8")
        # Python takes compiled code to be up to date where
        # size and second of the last change are the same.
        moment = original.st_mtime + next(self._seconds)
        os.utime(path, (moment, moment))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(original.st_atime_ns, original.st_mtime_ns))

    def existing(self, tests: Sequence[str]) -> list[str]:
        """Return those of the files and folders that the checkout has."""
        return [name for name in tests if (self._root / name).exists()]

    def run_tests(
        self, tests: Sequence[str], marks: str | None, options: Sequence[str], timeout_s: float
    ) -> PytestRun:
        """Run pytest in a process of its own."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-rfE",
            *options,
            *tests,
        ]
        start = time.monotonic()
        process = self._process = subprocess.Popen(
            [*command, *([] if marks is None else ["-m", marks])],
            cwd=self._root,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, status = process.communicate(timeout=timeout_s)[0], process.returncode
        except subprocess.TimeoutExpired:
            output, status = "", None
        finally:
            self.stop_tests()  # those that a defect ends early may leave processes behind
        return PytestRun(status, output, time.monotonic() - start)

    def stop_tests(self) -> None:
        """Kill pytest, if it runs, and all that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _environment(self) -> dict[str, str]:
        """Return one in which this copy is imported, also by processes that tests start, with an almost empty cache.

        Compiled programs are shared with other runs: their names say what they compute. What else a cache keeps, small
        models and data sets, may be the work of a defect, and the next one must not find it.
        """
        shutil.rmtree(self._cache, ignore_errors=True)
        self._cache.mkdir()
        # As in tests/conftest.py
        default = Path(tempfile.gettempdir(), f"jaxppo-tests-{getpass.getuser()}")
        programs = Path(os.environ.get("JAXPPO_CACHE") or default).resolve() / "xla"
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._cache / "xla").symlink_to(programs)
        paths = os.pathsep.join(filter(None, [str(self._root), os.environ.get("PYTHONPATH")]))
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"
        }
        return environment | {"PYTHONPATH": paths, "JAXPPO_CACHE": str(self._cache)}


# ------------------------------------------------------------------------------------------------------------- verdicts


def judge(copy: Copy, defect: Defect) -> Outcome:
    """Run the tests of a defect with the defect in place, up to the first that fails."""
    tests = copy.existing(defect.tests)
    if not tests:
        return Outcome(defect, BROKEN, 0.0, "the checkout has none of its tests")
    with copy.planted(defect):
        done = copy.run_tests(tests, defect.marks, ["-x"], TIMEOUT_S)
    if done.status == 1 and (first := FAILED_TEST.search(done.output)):
        return Outcome(defect, CAUGHT, done.seconds, first[1])
    if done.status == 0:
        return Outcome(defect, MISSED, done.seconds, "")
    if done.status is None:
        return Outcome(defect, BROKEN, done.seconds, "the tests took too long")
    *_, last = ["", *done.output.strip().splitlines()]
    return Outcome(defect, BROKEN, done.seconds, f"pytest's status {done.status}: {last}")


def confirm(copy: Copy, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Run the tests that failed without any defect; a defect is not caught by one that fails then, too."""
    caught = [outcome for outcome in outcomes if outcome.status == CAUGHT]
    failing: set[tuple[str | None, str]] = set()
    for marks in dict.fromkeys(outcome.defect.marks for outcome in caught):
        tests = sorted({outcome.note for outcome in caught if outcome.defect.marks == marks})
        done = copy.run_tests(tests, marks, [], TIMEOUT_S + 60 * len(tests))
        if done.status not in (0, 1):
            raise SystemExit(
                f"pytest: expected to run {len(tests)} tests, got status {done.status}\n{done.output}"
            )
        failing.update((marks, test) for test in FAILED_TEST.findall(done.output))
    return [
        outcome._replace(status=BROKEN, note=f"fails without it, too: {outcome.note}")
        if (outcome.defect.marks, outcome.note) in failing
        else outcome
        for outcome in outcomes
    ]


def judge_all(checkout: Path, defects: Sequence[Defect], jobs: int) -> list[Outcome]:
    """Judge defects in copies of a checkout, `jobs` at a time; print each outcome as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="jaxppo-defects-") as name:
        folder = Path(name).resolve()
        copies = [Copy(checkout, folder / str(number)) for number in range(jobs)]
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def outcome_of(defect: Defect) -> Outcome:
            count = defect.count_in(checkout)
            if count != 1:
                return Outcome(defect, STALE, 0.0, f"its text is {count} times in {defect.file}")
            copy = free.get()
            try:
                return judge(copy, defect)
            finally:
                free.put(copy)

        def printed(defect: Defect) -> Outcome:
            outcome = outcome_of(defect)
            print(outcome.line(), flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            try:
                outcomes = list(pool.map(printed, defects))
            except BaseException:  # a signal does not wait for the tests that run
                for copy in copies:
                    copy.stop_tests()
                raise
        return confirm(copies[0], outcomes)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return a table of how many in each area, and a line for each that is not caught."""
    counts = Counter((outcome.defect.area, outcome.status) for outcome in outcomes)
    counts.update(("all", outcome.status) for outcome in outcomes)
    areas = dict.fromkeys(outcome.defect.area for outcome in outcomes)
    lines = [f"{'':12}" + "".join(f"{status:>8}" for status in STATUSES)]
    for area in (*areas, "all"):
        lines.append(f"{area:12}" + "".join(f"{counts[area, status]:8}" for status in STATUSES))
    for status in (MISSED, STALE, BROKEN):
        of_status = [outcome for outcome in outcomes if outcome.status == status]
        lines += [
            f"{status}: {outcome.defect.name}, {outcome.note or outcome.defect.about}"
            for outcome in of_status
        ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 unless all defects are caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names or areas; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument(
        "--checkout", type=Path, default=ROOT, help="whose package and tests; default: this one's"
    )
    parser.add_argument(
        "--marks", help="which tests, as for pytest's -m; default: as the list says"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    parser.add_argument("--dry_run", action="store_true", help="only look for the texts")
    options = parser.parse_args(argv)
    checkout = options.checkout.resolve()
    defects = select(read_defects(), options.only)
    if options.dry_run:
        stale = [defect.name for defect in defects if defect.count_in(checkout) != 1]
        print("\n".join([f"{len(defects)} defects, {len(stale)} stale", *stale]))
        return int(bool(stale))
    if options.marks is not None:
        defects = [defect._replace(marks=options.marks) for defect in defects]
    # So that copies are removed
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    start = time.monotonic()
    outcomes = judge_all(checkout, defects, options.jobs)
    print(f"\n{summary(outcomes)}\n{time.monotonic() - start:.0f} s")
    if options.json is not None:
        options.json.write_text(
            json.dumps([outcome.record() for outcome in outcomes], indent=2) + "\n"
        )
    return int(any(outcome.status != CAUGHT for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
