"""Plans as files, as planners and the planning competitions keep them: `MODEL/DOMAIN/p01.plan`, `p01.plan.1`."""

from collections.abc import Collection
from pathlib import Path

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import PlanAnswer, UnusableAnswer
from jaxppo.planning.datasets.files import read_pddl_text
from jaxppo.planning.importing.pddl_folder import MAX_BYTES, PLAN_NAME


def read_plan_file(
    path: Path, source: Path, label: str, folders: Collection[str]
) -> PlanAnswer | UnusableAnswer:
    """Read a plan; its name is that of its problem, several of one name are several answers.

    A file that is called `sas_plan` alone is a plan for the problem that its folder is called like.

    The innermost folder in whose name there are problems is the domain; what lies above it, in `source`, is the model.

    Args:
        path: the file.
        source: what was asked for: the file, or a folder that it is in.
        label: the file for messages.
        folders: names of the folders with problems.
    """
    try:
        text = read_pddl_text(path, MAX_BYTES)
    except DataError as error:
        return UnusableAnswer.from_error(label, error)
    root = source if source.is_dir() else source.parent
    model_folders = list(path.relative_to(root).parts[:-1])
    match = PLAN_NAME.fullmatch(path.name)
    # `p01.plan.1` and `p01.pddl.soln` are plans for `p01`.
    problem = match[1] if match else path.name
    if problem is None:
        problem = model_folders.pop() if model_folders else root.resolve().name
        if problem in folders:
            return UnusableAnswer(
                label,
                f"expected the name of its problem before it, as in p01.{path.name}, got none",
            )
    domain = ""
    # From the inside out; without such a folder, all of them are the model's.
    for depth in reversed(range(len(model_folders))):
        if model_folders[depth] in folders:
            domain = model_folders[depth]
            del model_folders[depth:]
            break
    model = "/".join(model_folders) or root.resolve().name
    return PlanAnswer(label, model, domain, "plans", problem, text, is_planner_output=True)
