"""A folder of PDDL files: which are domains and which problems, and which domain and which plan belong to a problem."""

import contextlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import DataError
from jaxppo.planning.datasets.files import read_text

_COMMENT = re.compile(r";[^\n]*+")
_DEFINITION = re.compile(r"\s*+\(\s*+define\s*+\(\s*+(domain|problem)\s++([^\s()]++)\s*+\)")
_DOMAIN_OF_PROBLEM = re.compile(r"\(\s*+:domain\s++([^\s()]++)\s*+\)")
_LAST_NUMBER = re.compile(r"(\d+)\D*+$")
MOST_BYTES = 16_000_000
"""Of a PDDL file or a plan: four times the largest of the planning competitions; a larger one is not loaded."""
_DOMAIN_FOLDERS = (".", "domain", "domains")
PLAN_FOLDERS = ("plan", "plans", "solution", "solutions")
_PLAN_SUFFIXES = (".plan", ".soln", ".sol", ".solution")
_SAS_PLAN = "sas_plan"  # what Fast Downward writes where it is not told otherwise


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


def natural_key(text: str) -> list[tuple[int, str]]:
    """Make a key for sorting: `p2` in front of `p10`."""
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def last_number(stem: str) -> int | None:
    """Read the number that a file's name ends with: 40 for `instance-40`, and for `p40-domain`."""
    match = _LAST_NUMBER.search(stem)
    return int(match[1]) if match and len(match[1]) < 19 else None


class PddlFolder:
    """The PDDL files in a folder and all folders below; each is read when it is asked for, once.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root
        self._read: dict[Path, Definition | str] = {}
        self._kinds: dict[tuple[Path, str], list[Definition]] = {}
        self._prefixes: dict[Path, dict[str, list[Path]]] = {}

    @cached_property
    def files(self) -> list[Path]:
        """The `.pddl` files, `p2` in front of `p10`."""
        found = [path for path in self.root.rglob("*") if path.suffix.lower() == ".pddl" and self._is_own_file(path)]
        return sorted(found, key=lambda path: natural_key(self.label(path)))

    @cached_property
    def _real_root(self) -> Path:
        return self.root.resolve()

    def _is_own_file(self, path: Path) -> bool:
        """Return whether a path is a file that really is in the folder; a link that leads out of it is none."""
        return path.is_file() and path.resolve().is_relative_to(self._real_root)

    def label(self, path: Path) -> str:
        """Return a file's path in the folder."""
        return path.relative_to(self.root).as_posix()

    def definition(self, path: Path) -> Definition:
        """Read what a file defines.

        Raises:
            DataError: it is no text, or defines neither a domain nor a problem.
        """
        if path not in self._read:
            try:
                self._read[path] = _definition(path, read_text(path, MOST_BYTES))
            except DataError as error:
                self._read[path] = str(error)
        found = self._read[path]
        if isinstance(found, str):
            raise DataError(found)
        return found

    def domain_of(self, problem: Definition) -> Definition:
        """Find the domain of a problem: the nearest one with the name that the problem states, else the nearest one.

        Near is the problem's folder, then each folder above, with their subfolders `domains`. Where several domains of
        a folder have the name, the one that is called like the problem's file (`domain-01` and `p01`) is taken.

        Raises:
            DataError: there is none, or several that differ.
        """
        nearest: list[Definition] = []
        for folder in self._folders_above(problem.path):
            found = [domain for place in _DOMAIN_FOLDERS for domain in self._in_folder(folder / place, "domain")]
            named = [domain for domain in found if domain.name == problem.domain]
            if named:
                return self._only(named, problem)
            nearest = nearest or found
        if not nearest:
            raise DataError(f"domain: expected a file that defines the domain '{problem.domain}', got none")
        return self._only(nearest, problem)

    def plans_of(self, problem: Definition) -> list[Path]:
        """List the files that may hold a plan for a problem, the best name first.

        `p01.plan`, `p01.pddl.soln`, `plans/p01.anything`, in a mirrored tree `solutions/rovers/easy/p01.plan` for
        `rovers/easy/p01.pddl` or `problems/rovers/easy/p01.pddl`, and `sas_plan` where it can only belong to this
        problem. Of numbered ones (`p01.plan.2`, `sas_plan.2`) the last comes first, since planners number them as they
        get better.
        """
        folder, stems = problem.path.parent, (problem.path.stem, problem.path.name)
        found = [path for suffix in _PLAN_SUFFIXES for stem in stems for path in self._numbered(folder, stem + suffix)]
        for place in self._plan_folders(folder):
            found += self._starting_with(place, problem.path.stem)
        if len(self._in_folder(folder, "problem")) == 1:
            found += self._numbered(folder, _SAS_PLAN)
        return list(dict.fromkeys(found))

    def _plan_folders(self, folder: Path) -> list[Path]:
        """List where plans for the problems of a folder may be: beside it, and at the same place of a mirrored tree."""
        places = [folder, folder.parent] if folder != self.root else [folder]
        found = [place / plans for place in places for plans in PLAN_FOLDERS]
        for base in self._folders_above(folder / "problem"):
            parts = folder.relative_to(base).parts
            for mirrored in (parts, parts[1:]):
                found += [base.joinpath(plans, *mirrored) for plans in PLAN_FOLDERS if mirrored]
        return list(dict.fromkeys(found))

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
        """Read what the files of a folder define; those that cannot be read are reported by who lists the files."""
        if (folder, kind) not in self._kinds:
            found: dict[str, list[Definition]] = {"domain": [], "problem": []}
            for path in self._by_folder.get(folder, ()):
                with contextlib.suppress(DataError):
                    definition = self.definition(path)
                    found[definition.kind].append(definition)
            self._kinds |= {(folder, key): definitions for key, definitions in found.items()}
        return self._kinds[folder, kind]

    def _only(self, domains: list[Definition], problem: Definition) -> Definition:
        own = [domain for domain in domains if _belong_together(domain.path.stem, problem.path.stem)]
        domains = own or domains
        if len({domain.text for domain in domains}) > 1:
            files = ", ".join(self.label(domain.path) for domain in domains[:3])
            more = f" and {len(domains) - 3} more" if len(domains) > 3 else ""
            raise DataError(f"domain: expected one file for the domain '{problem.domain}', got {files}{more}")
        return domains[0]

    def _starting_with(self, folder: Path, name: str) -> list[Path]:
        """List the files `NAME` and `NAME.anything`: the highest number first, then by their names."""
        if folder not in self._prefixes:
            prefixes: dict[str, list[Path]] = {}
            for path in sorted(folder.glob("*")):
                parts = path.name.split(".")
                for length in range(1, len(parts) + 1):
                    prefixes.setdefault(".".join(parts[:length]), []).append(path)
            self._prefixes[folder] = prefixes
        found = self._prefixes[folder].get(name, [])
        return sorted(filter(self._is_own_file, found), key=lambda path: -_number_suffix(path))

    def _numbered(self, folder: Path, name: str) -> list[Path]:
        """List the files `NAME.2`, `NAME.1` and `NAME`."""
        found = self._starting_with(folder, name)
        return [path for path in found if path.name in (name, f"{name}.{_number_suffix(path)}")]


def _definition(path: Path, text: str) -> Definition:
    plain = _COMMENT.sub("", text).lower()
    match = _DEFINITION.match(plain)
    if match is None:
        raise DataError(
            f"{path.name}: expected '(define (domain NAME)' or '(define (problem NAME)', got {plain[:30]!r}"
        )
    domain = _DOMAIN_OF_PROBLEM.search(plain) if match[1] == "problem" else None
    return Definition(path, _without_spare_parentheses(text), match[1], match[2], domain[1] if domain else "")


def _without_spare_parentheses(text: str) -> str:
    """Drop closing parentheses behind the whole definition: PlanBench's logistics has them, and VAL reads over them."""
    depth = 0
    for match in re.finditer(r"[()]|;[^\n]*+", text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0 and match[0] == ")":
            rest = text[match.end() :]
            return text[: match.end()] + "\n" if ")" in rest and not rest.strip(") \t\n") else text
    return text


def _number_suffix(path: Path) -> int:
    digits = path.suffix[1:]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1


def _belong_together(domain_stem: str, problem_stem: str) -> bool:
    """Match `domain-01` and `p01`, `p01-domain` and `p01`, `domain_a` and `a`."""
    if "domain" not in domain_stem.lower():
        return False
    rest = domain_stem.lower().replace("domain", "").strip("-_.")
    number = last_number(rest)
    if rest.isdigit():
        return number == last_number(problem_stem)
    return bool(rest) and rest == problem_stem.lower()
