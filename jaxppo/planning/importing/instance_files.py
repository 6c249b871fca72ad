"""Rows that name a problem by domain and instance number, as PlanBench's and the paper's do: its files, its plan."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxppo.config.reading import parse_yaml
from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.files import read_text
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.importing.pddl_folder import Definition, PddlFolder, last_number
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.importing.source_problems import (
    FROM_SOURCE,
    Reading,
    SourceProblem,
    plan_objection,
    read_plan,
)
from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.temporal import read_names

_CONFIG_PATTERNS = ("configs/*.yaml", "*/configs/*.yaml", "../configs/*.yaml")
"""Where PlanBench's configurations are, seen from the folder with its PDDL files."""


class Entry(NamedTuple):
    """A row of a source.

    Attributes:
        domain: name of the domain.
        instance: number or name of the instance.
        plan_text: its plan; empty where there is none.
        source: file and row.
        columns: further columns for the row that comes of it.
    """

    domain: str
    instance: str
    plan_text: str
    source: str
    columns: Mapping[str, Any]


class _InstanceFiles(NamedTuple):
    """A problem's files.

    Attributes:
        problem: the problem's.
        domain: its domain's.
        is_configured: whether a configuration of PlanBench names them.
        is_of_domain: whether they are of the entry's domain: they are configured, or a folder or the domain itself is
            called so.
    """

    problem: Definition
    domain: Definition
    is_configured: bool
    is_of_domain: bool


def collect(entries: Iterable[Entry | Rejected], instances: "Instances") -> Reading:
    """Find the problem of each row; rows of one problem are one, with all their different plans."""
    problems: dict[Path, SourceProblem] = {}
    for entry in entries:
        if isinstance(entry, Rejected):
            yield entry
            continue
        try:
            files = instances.files_of(entry)
        except DataError as error:
            # Names are cut: they are a stranger's, and may be of any length.
            yield Rejected(
                f"{entry.domain:.60}-{entry.instance:.60}",
                entry.domain,
                "",
                entry.source,
                str(error),
            )
            continue
        path = files.problem.path
        problem = problems.get(path) or instances.problem_of(entry, files)
        problems[path] = instances.with_plan(problem, entry, files)
    yield from problems.values()


class Instances:
    """The PDDL files of instances, by domain and number.

    Args:
        pddl_dir: the folder they are in, at any depth.

    Attributes:
        folder: its files; an instance is always one of them, whatever its name is.
    """

    def __init__(self, pddl_dir: Path):
        self.folder = PddlFolder(pddl_dir)
        self._files_by_entry: dict[tuple[str, str, str], _InstanceFiles] = {}

    def files_of(self, entry: Entry) -> _InstanceFiles:
        """Find the files of an instance; of several with its name, those for which its plan is valid.

        Raises:
            DataError: there are none, or it is not clear which.
        """
        # The plan is part of the key, as it decides between files of one name.
        key = (entry.domain, entry.instance, entry.plan_text)
        if key not in self._files_by_entry:
            self._files_by_entry[key] = self._choose(entry, self._candidates(entry))
        return self._files_by_entry[key]

    def problem_of(self, entry: Entry, files: _InstanceFiles) -> SourceProblem:
        """Make the problem of an instance, without its plan."""
        label = self.folder.label(files.problem.path)
        return SourceProblem(
            id=label.removesuffix(files.problem.path.suffix),
            domain=entry.domain,
            domain_pddl=files.domain.text,
            problem_pddl=files.problem.text,
            source=entry.source,
            planner=FROM_SOURCE,
            columns={"source": label, **entry.columns},
            files=(self.folder.label(files.domain.path), label),
        )

    def with_plan(
        self, problem: SourceProblem, entry: Entry, files: _InstanceFiles
    ) -> SourceProblem:
        """Add the plan of a row to the plans of a problem."""
        if not entry.plan_text.strip():
            return problem
        try:
            plan = self._plan(entry, files)
        except DataError as error:
            return problem._replace(plan_error=problem.plan_error or str(error))
        return problem if plan in problem.plans else problem._replace(plans=(*problem.plans, plan))

    def _candidates(self, entry: Entry) -> list[_InstanceFiles]:
        """List the files that an instance may mean, with their domains.

        Raises:
            DataError: something is wrong with each of them.
        """
        configured = self._configured_files(entry)
        # Rows write `007` or `7`, files are found under 7.
        paths = self._paths_by_name.get(entry.instance.lstrip("0") or "0", [])
        # A folder that is called like the domain beats any other place.
        paths_of_domain = [path for path in paths if entry.domain in path.parts]
        paths = paths_of_domain or paths
        if configured is not None:
            paths = [configured[0], *paths]
        candidates: list[_InstanceFiles] = []
        errors: list[DataError] = []
        for path in dict.fromkeys(paths):
            try:
                problem = self.folder.definition(path)
                if problem.kind != "problem":
                    continue
                is_configured = configured is not None and path == configured[0]
                domain = (
                    configured[1]
                    if configured is not None and is_configured
                    else self.folder.domain_of(problem)
                )
            except DataError as error:
                # Only reported where no file is left.
                errors.append(error)
                continue
            is_of_domain = (
                is_configured or bool(paths_of_domain) or domain.name == entry.domain.lower()
            )
            candidates.append(_InstanceFiles(problem, domain, is_configured, is_of_domain))
        if errors and not candidates:
            raise DataError(f"no problem file: {errors[0]}")
        return candidates

    def _choose(self, entry: Entry, candidates: Sequence[_InstanceFiles]) -> _InstanceFiles:
        """Return the files that an entry means.

        A number is no name: several folders may have an `instance-7`. A single candidate is enough if its folder, its
        domain or a configuration shows that it is of the entry's domain. Otherwise the plan decides, as it should be
        valid for one of them only. If it does not, the file that PlanBench's configuration names is left. Nothing else
        is ever guessed: a row with the wrong problem is worse than a row that is left out.
        """
        if not candidates:
            raise DataError(
                f"no problem file: expected instance {entry.instance:.60} of {entry.domain:.60} in pddl_dir, got none"
            )
        # Copies of the same problem in several folders are one.
        by_text: dict[tuple[str, str], _InstanceFiles] = {}
        for files in candidates:
            by_text.setdefault((files.problem.text, files.domain.text), files)
        distinct = list(by_text.values())
        if len(distinct) == 1 and distinct[0].is_of_domain:
            return distinct[0]
        fitting = [files for files in distinct if self._fits(entry, files)]
        if len(fitting) == 1:
            return fitting[0]
        # A candidate that a configuration names is the first.
        if candidates[0].is_configured and (not fitting or candidates[0] in fitting):
            return candidates[0]
        labels = sorted(self.folder.label(files.problem.path) for files in fitting or distinct)
        examples = ", ".join(labels[:3]) + ", ..." * (len(labels) > 3)
        reason = "it has no plan that would decide"
        if entry.plan_text.strip():
            reason = "its plan is valid for " + ("several" if fitting else "none of them")
        raise DataError(
            f"unclear problem file: expected one file for instance {entry.instance:.60} of {entry.domain:.60}, "
            f"got {examples}: {reason}"
        )

    def _fits(self, entry: Entry, files: _InstanceFiles) -> bool:
        """Return whether the plan of a row is valid; where it has none, whether the files are of its domain."""
        if not entry.plan_text.strip():
            return files.is_of_domain
        try:
            return (
                plan_objection(files.domain.text, files.problem.text, self._plan(entry, files))
                is None
            )
        except DataError:
            return False

    def _plan(self, entry: Entry, files: _InstanceFiles) -> tuple[Action, ...]:
        """Read the plan of an entry in the names of its problem: PDDL, or sentences of PlanBench's configuration."""
        try:
            names = read_names(files.domain.text, files.problem.text).problem
        except PddlError:
            return read_plan(entry.plan_text)  # who checks the problem says what is wrong with it
        config = self.configs.get(entry.domain)
        if not config:
            return tuple(_without_surplus_words(step, names) for step in read_plan(entry.plan_text))
        sentences = Sentences(config, names)
        # No sentence has parentheses.
        if "(" not in entry.plan_text:
            return tuple(sentences.read(entry.plan_text))
        return tuple(
            _without_surplus_words(sentences.in_pddl(step), names)
            for step in read_plan(entry.plan_text)
        )

    @cached_property
    def _paths_by_name(self) -> dict[str, list[Path]]:
        """The files by their names, and by the numbers that these end with."""
        paths: dict[str, list[Path]] = {}
        for path in self.folder.files:
            paths.setdefault(path.stem, []).append(path)
            number = last_number(path.stem)
            if number is not None and str(number) != path.stem:
                paths.setdefault(str(number), []).append(path)
        return paths

    def _configured_files(self, entry: Entry) -> tuple[Path, Definition] | None:
        """Find the problem file and the domain that a configuration of PlanBench names, where the folder has them."""
        config = self.configs.get(entry.domain, {})
        template = config.get("instances_template")
        folder = config.get("instance_dir")
        domain = config.get("domain_file")
        if (
            not isinstance(template, str)
            or not isinstance(folder, str)
            or not isinstance(domain, str)
        ):
            return None
        for base in (self.folder.root, self.folder.root / "instances"):
            problem_path = base / folder / template.replace("{}", entry.instance)
            domain_path = base / domain
            # Only files of the folder: a template or a number may contain `..`.
            if problem_path in self._paths and domain_path in self._paths:
                return problem_path, self.folder.definition(domain_path)
        return None

    @cached_property
    def _paths(self) -> frozenset[Path]:
        return frozenset(self.folder.files)

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """PlanBench's configurations in or beside the folder, by the domain's name."""
        paths: list[Path] = []
        for pattern in _CONFIG_PATTERNS:
            paths += self.folder.root.glob(pattern)
        configs: dict[str, dict[str, Any]] = {}
        for path in sorted(paths):
            try:
                config = parse_yaml(read_text(path))
            except (DataError, yaml.YAMLError):
                continue
            # Rows name a configuration by its file or by the
            # domain's name in it; the latter is PlanBench's own way.
            if isinstance(config, dict):
                configs.setdefault(path.stem, config)
                configs[str(config.get("domain_name", path.stem))] = config
        return configs


def _without_surplus_words(step: Action, problem: Problem) -> Action:
    """Write PlanBench's `(feast object b object c)` as `(feast b c)`: drop surplus words that are no objects."""
    # Only steps that are too long, and only if what is left fits: other errors are the plan's own.
    schema = problem.domain.actions.get(step[0])
    if schema is None or len(step) - 1 <= len(schema.parameters):
        return step
    objects = [word for word in step[1:] if word in problem.objects]
    return (step[0], *objects) if len(objects) == len(schema.parameters) else step
