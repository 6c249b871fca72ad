"""The problem that an answer is to: found by configuration and number, by its file, or given in the answer."""

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jaxppo.errors import DataError, PddlError, with_file_names
from jaxppo.planning.answers.answer import PlanAnswer, is_pddl
from jaxppo.planning.answers.extraction import PlanReader
from jaxppo.planning.importing.instance_files import Entry, Instances
from jaxppo.planning.importing.pddl_folder import Definition, PddlFolder
from jaxppo.planning.importing.planbench_sentences import Sentences
from jaxppo.planning.language.plans import format_action
from jaxppo.planning.language.task import Problem
from jaxppo.planning.language.temporal import PlanNames, read_names
from jaxppo.planning.validate.api import validate_actions
from jaxppo.planning.validate.val import find_val


class AnsweredProblem(NamedTuple):
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


class _ProblemTexts(NamedTuple):
    """The texts of a problem and its domain, and what the two are called in results."""

    domain_pddl: str
    problem_pddl: str
    id: str
    domain: str
    files: tuple[str, str] = ("<domain>", "<problem>")
    """What the two are called in messages."""


class Problems:
    """Finds problems, each once.

    A name is only ever looked up among the PDDL files that lie in the folder, so that none leads out of it.

    Args:
        pddl_dir: folder of domains and problems; None where answers bring their own.
    """

    def __init__(self, pddl_dir: Path | None):
        self._instances = None if pddl_dir is None else Instances(pddl_dir)
        # Two caches, as several names may stand for one problem:
        # verdicts are remembered by the identity of its task.
        self._task_by_name: dict[
            tuple[str, str, tuple[str, str] | None], AnsweredProblem | DataError | PddlError
        ] = {}
        self._task_by_texts: dict[_ProblemTexts, AnsweredProblem] = {}
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
        names: set[str] = set()
        for label in self._paths_by_label:
            names.update(Path(label).parts[:-1])
        return frozenset(names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the problems of the folder are called in results."""
        labels = []
        for label, path in self._paths_by_label.items():
            # A file that cannot be read is named where a plan asks for it.
            with suppress(DataError):
                if self._folder.definition(path).kind == "problem":
                    labels.append(label.removesuffix(path.suffix))
        return tuple(labels)

    def find(self, answer: PlanAnswer) -> AnsweredProblem:
        """Find the problem of an answer.

        Raises:
            DataError: there is none, or no validator here covers it.
            PddlError: its text cannot be read.
        """
        # A file of results has hundreds of answers to the same problems, also to one that cannot be read.
        key = (answer.domain, answer.problem, answer.prompt_pddl)
        if key not in self._task_by_name:
            try:
                self._task_by_name[key] = self._task(answer)
            except (DataError, PddlError) as error:
                self._task_by_name[key] = error
        found = self._task_by_name[key]
        if isinstance(found, Exception):
            raise found
        return found

    def reference(self, task: AnsweredProblem, text: str) -> tuple[str, ...]:
        """Return a reference plan as a list of steps; empty where the text is no valid plan for the problem."""
        key = (id(task), text)
        if key not in self._references:
            plan = task.reader.read(text, "strict")
            # Lengths and costs are compared with it, so a
            # reference that is no valid plan counts as none.
            is_valid = False
            if plan.error is None and plan.actions and task.problem is not None:
                is_valid = validate_actions(task.domain_pddl, task.problem_pddl, plan.actions).valid
            self._references[key] = tuple(map(format_action, plan.actions)) if is_valid else ()
        return self._references[key]

    def _task(self, answer: PlanAnswer) -> AnsweredProblem:
        """Make the task of an answer; one that another name stood for is the same."""
        if answer.prompt_pddl is not None:
            # Where the PDDL that a prompt shows cannot be read, its files are what is left.
            with suppress(PddlError):
                name = f"{answer.domain}/{answer.problem}"
                return self._task_of_texts(
                    answer, _ProblemTexts(*answer.prompt_pddl, name, answer.domain)
                )
        return self._task_of_texts(answer, self._texts(answer))

    def _task_of_texts(self, answer: PlanAnswer, texts: _ProblemTexts) -> AnsweredProblem:
        if texts in self._task_by_texts:
            return self._task_by_texts[texts]
        # Actions and objects are enough to read plans; VAL reads the rest.
        names = _read_names(texts.domain_pddl, texts.problem_pddl, texts.files)
        if names.beyond is not None and find_val() is None:
            beyond = with_file_names(str(names.beyond), *texts.files)
            raise DataError(f"{texts.id}: {beyond}; VAL may cover it")
        problem = names.problem if names.beyond is None else None
        config = self._instances.configs.get(answer.domain) if self._instances else None
        sentences = Sentences(config, names.problem) if config else None
        reader = PlanReader(names.problem, sentences)
        task = AnsweredProblem(
            texts.id, texts.domain, texts.domain_pddl, texts.problem_pddl, problem, reader
        )
        self._task_by_texts[texts] = task
        return task

    def _texts(self, answer: PlanAnswer) -> _ProblemTexts:
        """Find the texts of a problem that an answer brings or names, and its domain's."""
        if is_pddl(answer.problem):
            stated_domain = self._stated_domain(answer)
            if stated_domain is None:
                raise DataError(
                    "domain: expected PDDL, or a file in pddl_dir, for a problem given as PDDL, "
                    f"got {answer.domain!r:.60}"
                )
            domain_pddl = stated_domain[0]
            problem = read_names(domain_pddl, answer.problem).problem
            return _ProblemTexts(domain_pddl, answer.problem, problem.name, problem.domain.name)
        definition, domain_pddl, domain_file = self._problem_file(answer)
        label = self._folder.label(definition.path)
        files = (domain_file, label)
        domain = answer.domain
        # A text or a file is no name; then the domain is called what it calls itself.
        if not domain or is_pddl(domain) or domain in self._paths_by_label:
            domain = _read_names(domain_pddl, definition.text, files).problem.domain.name
        name = label.removesuffix(definition.path.suffix)
        return _ProblemTexts(domain_pddl, definition.text, name, domain, files)

    @property
    def _folder(self) -> PddlFolder:
        if self._instances is None:
            raise DataError(
                "pddl_dir: expected a folder with the problem, as the answer has only its name, got none"
            )
        return self._instances.folder

    @cached_property
    def _paths_by_label(self) -> dict[str, Path]:
        return {self._folder.label(path): path for path in self._folder.files}

    @cached_property
    def _paths_by_name(self) -> dict[str, list[Path]]:
        """The files by their names and by their paths, both without `.pddl`."""
        paths: dict[str, list[Path]] = {}
        for label, path in self._paths_by_label.items():
            for name in {path.stem, label.removesuffix(path.suffix)}:
                paths.setdefault(name, []).append(path)
        return paths

    def _stated_domain(self, answer: PlanAnswer) -> tuple[str, str] | None:
        """Return the domain that an answer brings as PDDL or names by its file, and what that is called in messages."""
        if is_pddl(answer.domain):
            return answer.domain, "<domain>"
        if answer.domain in self._paths_by_label:
            path = self._paths_by_label[answer.domain]
            return self._folder.definition(path).text, answer.domain
        return None

    def _problem_file(self, answer: PlanAnswer) -> tuple[Definition, str, str]:
        """Find the file of a problem, the text of its domain, and what that is called in messages."""
        if self._instances is not None and self._is_instance(answer):
            # Without a plan: the answer's own must not decide which problem it is judged on.
            files = self._instances.files_of(
                Entry(answer.domain, answer.problem, "", answer.source, {})
            )
            return files.problem, files.domain.text, self._folder.label(files.domain.path)
        problem = self._only_problem(answer)
        stated_domain = self._stated_domain(answer)
        if stated_domain is not None:
            return problem, *stated_domain
        domain = self._folder.domain_of(problem)
        return problem, domain.text, self._folder.label(domain.path)

    def _is_instance(self, answer: PlanAnswer) -> bool:
        """Return whether a problem is named by the number of an instance."""
        if answer.domain in self.configs:
            return True
        # In a folder of numbered instances `7` is none of
        # a file's names, while `p01` or `easy/p01` is.
        is_file = answer.problem in self._paths_by_label or answer.problem in self._paths_by_name
        return answer.domain in self.folders and not is_file

    def _only_problem(self, answer: PlanAnswer) -> Definition:
        """Find the one problem of a name; of several, the one below a folder that is called like the domain."""
        if answer.problem in self._paths_by_label:
            return self._folder.definition(self._paths_by_label[answer.problem])
        paths = self._paths_by_name.get(answer.problem, [])
        paths_of_domain = [path for path in paths if answer.domain in path.parts]
        definitions = [self._folder.definition(path) for path in paths_of_domain or paths]
        problems = [definition for definition in definitions if definition.kind == "problem"]
        if len(problems) != 1:
            raise DataError(
                f"problem: expected one file in pddl_dir for {answer.problem!r:.60} "
                f"of {answer.domain or 'any domain'!r:.60}, got {len(problems)}"
            )
        return problems[0]


def _read_names(domain_pddl: str, problem_pddl: str, files: tuple[str, str]) -> PlanNames:
    """Read actions and objects; an error names the files."""
    try:
        return read_names(domain_pddl, problem_pddl)
    except PddlError as error:
        file = with_file_names(f"{error.source}:", *files).removesuffix(":")
        raise type(error)(file, error.line, error.message) from error
