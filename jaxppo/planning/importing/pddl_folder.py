"""A folder of PDDL files: which are domains and which problems, and which domain and which plan belong to a problem."""

import contextlib
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import DataError
from jaxppo.planning.datasets.files import read_pddl_text
from jaxppo.planning.importing.source_files import natural_key

# Possessive quantifiers, here and below: a hostile file
# must not make the match take longer than linear time.
_COMMENT = re.compile(r";[^\n]*+")
_DEFINITION = re.compile(r"\s*+\(\s*+define\s*+\(\s*+(domain|problem)\s++([^\s()]++)\s*+\)")
_DOMAIN_OF_PROBLEM = re.compile(r"\(\s*+:domain\s++([^\s()]++)\s*+\)")
_LAST_NUMBER = re.compile(r"(\d+)\D*+$")
MAX_BYTES = 16_000_000
"""Of a PDDL file or a plan: four times the largest of the planning competitions; a larger one is not loaded."""
_DOMAIN_FOLDERS = (".", "domain", "domains")
PLAN_FOLDERS = ("plan", "plans", "solution", "solutions")
PLAN_NAME = re.compile(
    r"(?:(.+?)(?:\.pddl)?\.(?:plan|soln|sol|solution|sas_plan)|sas_plan)(?:\.\d{1,9})?",
    re.IGNORECASE,
)
"""A plan for the problem that group 1 names; Fast Downward's `sas_plan` alone names none."""


class Definition(NamedTuple):
    """A PDDL file.

    Attributes:
        path: the file.
        text: its text.
        kind: "domain" or "problem".
        name: the name that it gives itself, lower case.
        domain: of a problem, the name of its domain; "" where it states none, and for domains.
    """

    path: Path
    text: str
    kind: str
    name: str
    domain: str


def last_number(stem: str) -> int | None:
    """Read the number that a file's name ends with: 40 for `instance-40`, and for `p40-domain`."""
    match = _LAST_NUMBER.search(stem)
    # Up to 18 digits fit into 64 bits; Python also refuses to read very long numbers.
    return int(match[1]) if match and len(match[1]) < 19 else None


class PddlFolder:
    """The PDDL files in a folder and all folders below; each is read at its first use, once.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root
        self._read_once = cache(_read_definition)
        self._by_kind: dict[Path, dict[str, list[Definition]]] = {}
        self._by_prefix: dict[Path, dict[str, list[Path]]] = {}

    @cached_property
    def files(self) -> list[Path]:
        """The `.pddl` files, `p2` before `p10`."""
        paths = [
            path
            for path in self.root.rglob("*")
            if path.suffix.lower() == ".pddl" and path.is_file()
        ]
        return sorted(paths, key=lambda path: natural_key(self.label(path)))

    def label(self, path: Path) -> str:
        """Return a file's path in the folder."""
        return path.relative_to(self.root).as_posix()

    def definition(self, path: Path) -> Definition:
        """Read what a file defines.

        Raises:
            DataError: it is no text, or defines neither a domain nor a problem.
        """
        return self._read_once(path)

    def domain_of(self, problem: Definition) -> Definition:
        """Find the domain of a problem: the nearest one with the name that the problem states, else the nearest one.

        Near is the problem's folder, then each folder above, with their subfolders `domains`. Where several domains of
        a folder have the name, the one that is called like the problem's file (`domain-01` and `p01`) is taken.

        Raises:
            DataError: there is none, or several that differ.
        """
        # From the inside out, so that a domain beside the
        # problem wins over one of the same name further up.
        nearest: list[Definition] = []
        for folder in self._folders_above(problem.path):
            domains: list[Definition] = []
            for subfolder in _DOMAIN_FOLDERS:
                domains += self._in_folder(folder / subfolder, "domain")
            with_name = [domain for domain in domains if domain.name == problem.domain]
            if with_name:
                return self._only_domain(with_name, problem)
            nearest = nearest or domains
        # No domain has the name: the nearest one is taken,
        # as VAL does, which does not compare the names.
        if not nearest:
            raise DataError(
                f"domain: expected a file that defines the domain '{problem.domain}', got none"
            )
        return self._only_domain(nearest, problem)

    def plan_of(self, problem: Definition) -> Path | None:
        """Find the file with the plan for a problem.

        `p01.plan`, `p01.pddl.soln`, `plans/p01.anything`, in a mirrored tree `solutions/rovers/easy/p01.plan` for
        `rovers/easy/p01.pddl` or `problems/rovers/easy/p01.pddl`, and `sas_plan` where it can only belong to this
        problem. Of numbered ones (`p01.plan.2`, `sas_plan.2`) it is the last, since planners number them as they get
        better.
        """
        folder = problem.path.parent
        stem = problem.path.stem
        paths = self._plans_for(stem, folder)
        for plan_folder in self._plan_folders(folder):
            paths += self._starting_with(plan_folder, stem)
        # A planner writes `sas_plan` for whatever it solves:
        # with several problems nobody knows for which.
        if len(self._in_folder(folder, "problem")) == 1:
            paths += self._plans_for(None, folder)
        return paths[0] if paths else None

    def _plans_for(self, problem: str | None, folder: Path) -> list[Path]:
        paths = self._starting_with(folder, problem or "sas_plan")
        matches = [(path, PLAN_NAME.fullmatch(path.name)) for path in paths]
        return [path for path, match in matches if match is not None and match[1] == problem]

    def _plan_folders(self, folder: Path) -> list[Path]:
        """List where plans for the problems of a folder may be: beside it, and at the same place of a mirrored tree."""
        folders: list[Path] = []
        for base in self._folders_above(folder / "problem"):
            # With and without the first folder: `solutions/easy` may mirror
            # `problems/easy`, or `easy`; and `plans` may be beside either.
            parts = folder.relative_to(base).parts
            for mirrored in (parts, parts[1:]):
                folders += [base.joinpath(name, *mirrored) for name in PLAN_FOLDERS]
        return folders

    def _folders_above(self, path: Path) -> Iterator[Path]:
        for folder in path.parents:
            yield folder
            if folder == self.root:
                return

    @cached_property
    def _by_folder(self) -> dict[Path, list[Path]]:
        folders: dict[Path, list[Path]] = {}
        for path in self.files:
            folders.setdefault(path.parent, []).append(path)
        return folders

    def _in_folder(self, folder: Path, kind: str) -> list[Definition]:
        """Read what the files of a folder define; those that cannot be read are reported by whoever lists the files."""
        if folder not in self._by_kind:
            definitions: dict[str, list[Definition]] = {"domain": [], "problem": []}
            for path in self._by_folder.get(folder, ()):
                with contextlib.suppress(DataError):
                    definition = self.definition(path)
                    definitions[definition.kind].append(definition)
            self._by_kind[folder] = definitions
        return self._by_kind[folder][kind]

    def _only_domain(self, domains: list[Definition], problem: Definition) -> Definition:
        """Return the one domain that is meant; copies of one text are one."""
        # Some competitions have a domain for each problem, in one folder and with one name.
        matching = [
            domain for domain in domains if _belong_together(domain.path.stem, problem.path.stem)
        ]
        domains = matching or domains
        if len({domain.text for domain in domains}) > 1:
            files = ", ".join(self.label(domain.path) for domain in domains[:3])
            more = f" and {len(domains) - 3} more" if len(domains) > 3 else ""
            raise DataError(
                f"domain: expected one file for the domain '{problem.domain}', got {files}{more}"
            )
        return domains[0]

    def _starting_with(self, folder: Path, name: str) -> list[Path]:
        """List the files `NAME` and `NAME.anything`: the highest number first, then by their names."""
        if folder not in self._by_prefix:
            # A folder of plans is listed once, not once for each problem.
            prefixes: dict[str, list[Path]] = {}
            for path in sorted(folder.glob("*")):
                parts = path.name.split(".")
                for length in range(1, len(parts) + 1):
                    prefixes.setdefault(".".join(parts[:length]), []).append(path)
            self._by_prefix[folder] = prefixes
        paths = self._by_prefix[folder].get(name, [])
        return sorted(paths, key=lambda path: -_number_suffix(path))


def _read_definition(path: Path) -> Definition:
    """Read the first lines of a definition alone: whoever uses the file parses it, and says what is wrong inside."""
    # Comments may hold anything, also a definition that was commented out.
    text = read_pddl_text(path, MAX_BYTES)
    plain = _COMMENT.sub("", text).lower()
    match = _DEFINITION.match(plain)
    if match is None:
        raise DataError(
            f"{path.name}: expected '(define (domain NAME)' or '(define (problem NAME)', got {plain[:30]!r}"
        )
    kind, name = match.groups()
    domain = _DOMAIN_OF_PROBLEM.search(plain) if kind == "problem" else None
    return Definition(
        path, _without_spare_parentheses(text), kind, name, domain[1] if domain else ""
    )


def _without_spare_parentheses(text: str) -> str:
    """Drop closing parentheses after the whole definition: PlanBench's logistics has them, and VAL reads over them."""
    depth = 0
    for match in re.finditer(r"[()]|;[^\n]*+", text):
        if match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth -= 1
            if depth == 0:
                remainder = text[match.end() :]
                # Anything but parentheses stays, so that the parser refuses it.
                if ")" in remainder and not remainder.strip(") \t\n"):
                    return text[: match.end()] + "\n"
                return text
    return text


def _number_suffix(path: Path) -> int:
    """Return the number after the last dot of a name; -1 where there is none, so that it is sorted last."""
    digits = path.suffix[1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1


def _belong_together(domain_stem: str, problem_stem: str) -> bool:
    """Match `domain-01` and `p01`, `p01-domain` and `p01`, `domain_a` and `a`."""
    if "domain" not in domain_stem.lower():
        return False
    suffix = domain_stem.lower().replace("domain", "").strip("-_.")
    if suffix.isdigit():
        return last_number(suffix) == last_number(problem_stem)
    return bool(suffix) and suffix == problem_stem.lower()
