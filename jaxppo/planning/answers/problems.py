"""The problem that an answer is to: found by configuration and number, by its file, or given in the answer."""

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import DataError, PddlError
from jaxppo.planning.answers.answer import Answer, is_pddl
from jaxppo.planning.answers.extraction import PlanReader
from jaxppo.planning.importing.instance_files import Entry, Instances
from jaxppo.planning.importing.pddl_folder import Definition, PddlFolder
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.parse import UnsupportedPddlError, parse_domain, parse_problem
from jaxppo.planning.language.plans import format_action
from jaxppo.planning.language.task import Problem
from jaxppo.planning.language.temporal import read_names
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import find_val


class Task(NamedTuple):
    """A problem, ready to judge answers to it.

    Attributes:
        id: its file, or the name that it gives itself.
        domain: name of its domain.
        domain_pddl: text of its domain.
        problem_pddl: its text.
        problem: what the built-in validator judges; None where only VAL covers it.
        reader: reads answers.
    """

    id: str
    domain: str
    domain_pddl: str
    problem_pddl: str
    problem: Problem | None
    reader: PlanReader


class Problems:
    """Finds problems, each once.

    A name is only ever looked up among the PDDL files that lie in the folder, so that none leads out of it.

    Args:
        pddl_dir: folder of domains and problems; None where answers bring their own.
    """

    def __init__(self, pddl_dir: Path | None):
        self._instances = None if pddl_dir is None else Instances(pddl_dir)
        self._tasks: dict[tuple[str, str, tuple[str, str] | None], Task | str] = {}
        self._made: dict[tuple[str, ...], Task] = {}
        self._references: dict[tuple[int, str], tuple[str, ...]] = {}

    @property
    def configs(self) -> frozenset[str]:
        """The names of PlanBench's configurations."""
        return frozenset(self._instances.configs if self._instances else ())

    @cached_property
    def folders(self) -> frozenset[str]:
        """The names of all folders on the way to a PDDL file."""
        if self._instances is None:
            return frozenset()
        folder = self._instances.folder
        return frozenset(part for path in folder.files for part in Path(folder.label(path)).parts[:-1])

    def find(self, answer: Answer) -> Task:
        """Find the problem of an answer.

        Raises:
            DataError: there is none, or no validator here covers it.
        """
        key = (answer.domain, answer.problem, answer.given)
        if key not in self._tasks:
            try:
                self._tasks[key] = self._task(answer)
            except (DataError, PddlError) as error:
                self._tasks[key] = str(error)
        found = self._tasks[key]
        if isinstance(found, str):
            raise DataError(found)
        return found

    def reference(self, task: Task, text: str) -> tuple[str, ...]:
        """Return a reference plan as a list of steps; empty where the text is no valid plan for the problem."""
        key = (id(task), text)
        if key not in self._references:
            plan = task.reader.read(text, "strict")
            is_valid = False
            if plan.error is None and plan.actions and task.problem is not None:
                is_valid = validate_actions(task.domain_pddl, task.problem_pddl, plan.actions).valid
            self._references[key] = tuple(map(format_action, plan.actions)) if is_valid else ()
        return self._references[key]

    def _task(self, answer: Answer) -> Task:
        """Make the task of an answer; one that another name stood for is the same.

        Where the PDDL that a prompt shows cannot be read, its files are what is left.
        """
        if answer.given is not None:
            with suppress(PddlError):
                return self._known(answer, *answer.given, f"{answer.domain}/{answer.problem}", answer.domain)
        return self._known(answer, *self._texts(answer))

    def _known(self, answer: Answer, *texts: str) -> Task:
        if texts not in self._made:
            self._made[texts] = self._make(answer, *texts)
        return self._made[texts]

    def _make(self, answer: Answer, domain: str, problem: str, name: str, label: str) -> Task:
        try:
            parsed = parse_problem(problem, parse_domain(domain))
            names = parsed
        except UnsupportedPddlError as error:
            if find_val() is None:
                raise DataError(f"{name}: {error}; VAL may cover it") from error
            parsed, names = None, read_names(domain, problem).problem
        config = self._instances.configs.get(answer.domain) if self._instances else None
        sentences = Sentences(config, names) if config else None
        return Task(name, label, domain, problem, parsed, PlanReader(names, sentences))

    def _texts(self, answer: Answer) -> tuple[str, str, str, str]:
        """Return domain and problem, and the names of problem and domain."""
        if is_pddl(answer.problem):
            domain = self._domain_of_text(answer)
            parsed = read_names(domain, answer.problem).problem
            return domain, answer.problem, parsed.name, parsed.domain.name
        definition, domain = self._file(answer)
        label = self._folder().label(definition.path).removesuffix(definition.path.suffix)
        name = "" if is_pddl(answer.domain) or answer.domain in self._labels else answer.domain
        return domain, definition.text, label, name or read_names(domain, definition.text).problem.domain.name

    def _folder(self) -> PddlFolder:
        if self._instances is None:
            raise DataError("pddl_dir: expected a folder with the problem, as the answer has only its name, got none")
        return self._instances.folder

    @cached_property
    def _labels(self) -> dict[str, Path]:
        folder = self._folder()
        return {folder.label(path): path for path in folder.files}

    def _domain_of_text(self, answer: Answer) -> str:
        """Find the domain of a problem that an answer brings: brought too, a file, or the only one in the folder."""
        if is_pddl(answer.domain):
            return answer.domain
        folder = self._folder()
        if answer.domain in self._labels:
            return folder.definition(self._labels[answer.domain]).text
        raise DataError(
            f"domain: expected PDDL, or a file in pddl_dir, for a problem given as PDDL, got {answer.domain!r:.60}"
        )

    def _file(self, answer: Answer) -> tuple[Definition, str]:
        """Find the file of a problem, and the text of its domain."""
        folder = self._folder()
        if self._instances is not None and self._is_instance(answer):
            files = self._instances.files_of(Entry(answer.domain, answer.problem, "", answer.source, {}))
            return files.problem, files.domain.text
        problem = self._only(answer)
        if is_pddl(answer.domain):
            return problem, answer.domain
        if answer.domain in self._labels:
            return problem, folder.definition(self._labels[answer.domain]).text
        return problem, folder.domain_of(problem).text

    def _is_instance(self, answer: Answer) -> bool:
        """Return whether a problem is named by the number of an instance."""
        is_file = answer.problem in self._labels or answer.problem in self._by_name
        return answer.domain in self.configs or (answer.domain in self.folders and not is_file)

    def _only(self, answer: Answer) -> Definition:
        """Find the one problem of a name; of several, the one below a folder that is called like the domain."""
        folder = self._folder()
        if answer.problem in self._labels:
            return folder.definition(self._labels[answer.problem])
        named = self._by_name.get(answer.problem, [])
        below = [path for path in named if answer.domain in path.parts]
        found = [folder.definition(path) for path in below or named]
        problems = [definition for definition in found if definition.kind == "problem"]
        if len(problems) != 1:
            expected = f"expected one file in pddl_dir for {answer.problem!r:.60}"
            raise DataError(f"problem: {expected} of {answer.domain or 'any domain'!r:.60}, got {len(problems)}")
        return problems[0]

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        """The files by their names and by their paths, both without `.pddl`."""
        names: dict[str, list[Path]] = {}
        for label, path in self._labels.items():
            for name in {path.stem, label[: -len(path.suffix)]}:
                names.setdefault(name, []).append(path)
        return names
