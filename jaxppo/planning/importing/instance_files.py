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
from jaxppo.planning.importing.source_problems import Reading, SourceProblem, plan_objection, read_plan
from jaxppo.planning.language.parse import Problem
from jaxppo.planning.language.plans import Action
from jaxppo.planning.language.temporal import read_names


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


class _Files(NamedTuple):
    """A problem's files.

    Attributes:
        problem: the problem's.
        domain: its domain's.
        named: whether a configuration of PlanBench names them.
        sure: whether they are of the right domain: they are named, or a folder or the domain itself is called so.
    """

    problem: Definition
    domain: Definition
    named: bool
    sure: bool


def collect(entries: Iterable[Entry | Rejected], instances: "Instances", planner: str) -> Reading:
    """Find the problem of each row; rows of one problem are one, with all their different plans."""
    problems: dict[Path, SourceProblem] = {}
    for entry in entries:
        if isinstance(entry, Rejected):
            yield entry
            continue
        try:
            files = instances.files_of(entry)
        except DataError as error:
            yield Rejected(f"{entry.domain:.60}-{entry.instance:.60}", entry.domain, "", entry.source, str(error))
            continue
        known = problems.get(files.problem.path) or instances.problem_of(entry, files, planner)
        problems[files.problem.path] = instances.with_plan(known, entry, files)
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
        self._known: dict[tuple[str, str, str], _Files | str] = {}

    def files_of(self, entry: Entry) -> _Files:
        """Find the files of an instance; of several with its name, those for which its plan is valid.

        Raises:
            DataError: there are none, or it is not clear which.
        """
        key = (entry.domain, entry.instance, entry.plan_text)
        if key not in self._known:
            try:
                self._known[key] = self._only(entry, self._candidates(entry))
            except DataError as error:
                self._known[key] = str(error)
        found = self._known[key]
        if isinstance(found, str):
            raise DataError(found)
        return found

    def problem_of(self, entry: Entry, files: _Files, planner: str) -> SourceProblem:
        """Make the problem of an instance, without its plan."""
        label = self.folder.label(files.problem.path)
        return SourceProblem(
            id=label.removesuffix(files.problem.path.suffix),
            domain=entry.domain,
            domain_pddl=files.domain.text,
            problem_pddl=files.problem.text,
            source=entry.source,
            planner=planner,
            columns={"source": label, **entry.columns},
        )

    def with_plan(self, problem: SourceProblem, entry: Entry, files: _Files) -> SourceProblem:
        """Add the plan of a row to the plans of a problem."""
        if not entry.plan_text.strip():
            return problem
        try:
            plan = self._plan(entry, files)
        except DataError as error:
            return problem._replace(plan_error=problem.plan_error or str(error))
        return problem if plan in problem.plans else problem._replace(plans=(*problem.plans, plan))

    def _candidates(self, entry: Entry) -> list[_Files]:
        """List the files that an instance may mean, with their domains.

        Raises:
            DataError: something is wrong with each of them.
        """
        config = self.configs.get(entry.domain, {})
        named, domain = self._named_files(config, entry.instance)
        called = self._by_name.get(entry.instance.lstrip("0") or "0", [])
        own = [path for path in called if entry.domain in path.parts]
        paths: dict[Path, None] = dict.fromkeys(own or called)
        paths = {named: None, **paths} if named is not None else paths
        found, errors = [], []
        for path in paths:
            try:
                problem = self.folder.definition(path)
                if problem.kind == "problem":
                    is_named = path == named and domain is not None
                    its = domain if is_named and domain else self.folder.domain_of(problem)
                    sure = is_named or bool(own) or its.name == entry.domain.lower()
                    found.append(_Files(problem, its, is_named, sure))
            except DataError as error:
                errors.append(str(error))
        if errors and not found:
            raise DataError(f"no problem file: {errors[0]}")
        return found

    def _only(self, entry: Entry, candidates: Sequence[_Files]) -> _Files:
        if not candidates:
            raise DataError(
                f"no problem file: expected instance {entry.instance:.60} of {entry.domain:.60} in pddl_dir, got none"
            )
        distinct = list({(files.problem.text, files.domain.text): files for files in reversed(candidates)}.values())[
            ::-1
        ]
        if len(distinct) == 1 and distinct[0].sure:
            return distinct[0]
        fitting = [files for files in distinct if self._fits(entry, files)]
        if len(fitting) == 1:
            return fitting[0]
        if candidates[0].named and (not fitting or candidates[0] in fitting):
            return candidates[0]
        labels = sorted(self.folder.label(files.problem.path) for files in fitting or distinct)
        shown = ", ".join(labels[:3]) + ", ..." * (len(labels) > 3)
        which = "its plan is valid for " + ("several" if fitting else "none of them")
        which = which if entry.plan_text.strip() else "it has no plan that would decide"
        expected = f"expected one file for instance {entry.instance:.60} of {entry.domain:.60}"
        raise DataError(f"unclear problem file: {expected}, got {shown}: {which}")

    def _fits(self, entry: Entry, files: _Files) -> bool:
        """Return whether the plan of a row is valid; where it has none, whether the files are of its domain."""
        if not entry.plan_text.strip():
            return files.sure
        try:
            return plan_objection(files.domain.text, files.problem.text, self._plan(entry, files)) is None
        except DataError:
            return False

    def _plan(self, entry: Entry, files: _Files) -> tuple[Action, ...]:
        try:
            names = read_names(files.domain.text, files.problem.text).problem
        except PddlError:
            return read_plan(entry.plan_text)  # who checks the problem says what is wrong with it
        config = self.configs.get(entry.domain, {})
        if not config:
            return tuple(_without_surplus_words(step, names) for step in read_plan(entry.plan_text))
        sentences = Sentences(config, names)
        if "(" not in entry.plan_text:
            return tuple(sentences.read(entry.plan_text))
        return tuple(_without_surplus_words(sentences.in_pddl(step), names) for step in read_plan(entry.plan_text))

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        """The files whose names end with a number, by that number, and all by their names."""
        names: dict[str, list[Path]] = {}
        for path in self.folder.files:
            for name in {path.stem, str(last_number(path.stem))}:
                names.setdefault(name, []).append(path)
        return names

    def _named_files(self, config: Mapping[str, Any], instance: str) -> tuple[Path | None, Definition | None]:
        """Find the files that a configuration of PlanBench names, where they are in the folder."""
        template, folder, domain = (config.get(key) for key in ("instances_template", "instance_dir", "domain_file"))
        for base in (self.folder.root, self.folder.root / "instances"):
            if isinstance(template, str) and isinstance(folder, str) and isinstance(domain, str):
                problem_file, domain_file = base / folder / template.replace("{}", instance), base / domain
                if problem_file in self._files and domain_file in self._files:
                    return problem_file, self.folder.definition(domain_file)
        return None, None

    @cached_property
    def _files(self) -> frozenset[Path]:
        return frozenset(self.folder.files)

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """PlanBench's configurations in or beside the folder, by the domain's name."""
        root, found = self.folder.root, {}
        for path in sorted(
            [*root.glob("configs/*.yaml"), *root.glob("*/configs/*.yaml"), *root.glob("../configs/*.yaml")]
        ):
            try:
                config = parse_yaml(read_text(path))
            except (DataError, yaml.YAMLError):
                continue
            if isinstance(config, dict):
                found.setdefault(path.stem, config)
                found[str(config.get("domain_name", path.stem))] = config
        return found


def _without_surplus_words(step: Action, problem: Problem) -> Action:
    """Write PlanBench's `(feast object b object c)` as `(feast b c)`: drop surplus words that are no objects."""
    schema = problem.domain.actions.get(step[0])
    objects = [word for word in step[1:] if word in problem.objects]
    if schema is None or len(step) - 1 <= len(schema.parameters) or len(objects) != len(schema.parameters):
        return step
    return (step[0], *objects)
