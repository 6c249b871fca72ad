"""Result files of PlanBench, of both trees: `<config>/<model>/task_1_plan_generation_<prompt>.json` and their kin.

Judged are the plans of plan generation (task 1) and of optimality (task 2).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import PlanAnswer, UnusableAnswer
from jaxppo.planning.answers.columns import PLANBENCH, read_row, with_column_names
from jaxppo.planning.importing.planbench import OPTIMALITY, config_of, read_instances, task_number

_NAME = re.compile(r"task_\d+(?:_plan)?(?:_generation)?_?(.*)")
_ONE_SHOT = "one_shot"
"""What PlanBench calls a file without a further word."""
_DOMAIN = "[DOMAIN]\n"
_QUERY_PROBLEM = "[QUERY PROBLEM]\n"
_ANY_HEADING = re.compile(r"^\[[A-Z _]+\]\s*$", re.MULTILINE)


def read_results(
    path: Path, label: str, column_names: Mapping[str, str], configs: Collection[str]
) -> Iterator[PlanAnswer | UnusableAnswer]:
    """Read the answers of a file; what is wrong is a line, and so is the number of instances without an answer.

    Args:
        path: the file.
        label: the file for messages.
        column_names: columns that were asked for, see `columns.parse_columns`.
        configs: names of PlanBench's configurations.
    """
    try:
        content = read_instances(path, label)
    except DataError as error:
        # The line begins with the label already.
        yield UnusableAnswer.from_error(label, DataError(str(error).removeprefix(f"{label}: ")))
        return
    is_optimality = task_number(content) == OPTIMALITY
    defaults = _names_of_path(path) | {"domain": config_of(path, content, configs)}
    columns = with_column_names(PLANBENCH, column_names)
    n_unanswered = 0
    for number, instance in enumerate(content["instances"], 1):
        place = f"{label}: entry {number}"
        try:
            if not isinstance(instance, dict):
                raise DataError(f"expected a JSON object, got {type(instance).__name__}")
            place = f"{label}: instance {instance.get('instance_id')!s:.40}"
            if not any(
                instance.get(name) is not None for name in (*columns["plan"], "llm_raw_response")
            ):
                # Counted, and one line in the end: whole files may have no answers, or dialogues in their place.
                n_unanswered += 1
                continue
            answer = read_row(instance, columns, place, defaults)
            # The records of task 2 say whether a plan is optimal, and not whether it is valid.
            recorded = None if is_optimality else answer.recorded
            yield answer._replace(prompt_pddl=_prompt_pddl(instance), recorded=recorded)
        except DataError as error:
            yield UnusableAnswer.from_error(place, error)
    total = len(content["instances"])
    if n_unanswered:
        reason = f"{n_unanswered} of {total} instances have neither an answer nor an extracted plan"
        yield UnusableAnswer(label, reason)


def _names_of_path(path: Path) -> dict[str, str]:
    """Return the model, the folder of a file, and the kind of prompt, the end of its name (`optimality` of task 2)."""
    # Resolved, so that a file that is named alone still has its folders.
    folders = path.resolve().parts
    match = _NAME.fullmatch(path.stem)
    kind = match[1] if match else path.stem
    return {"model": folders[-2] if len(folders) > 1 else "", "prompt": kind or _ONE_SHOT}


def _prompt_pddl(instance: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return domain and problem where the prompt shows them as PDDL: they are what the model was asked about."""
    query = instance.get("query")
    if not isinstance(query, str) or _DOMAIN not in query or _QUERY_PROBLEM not in query:
        return None
    # The last ones: examples come before what is asked.
    domain = _ANY_HEADING.split(query.rpartition(_DOMAIN)[2])[0]
    problem = _ANY_HEADING.split(query.rpartition(_QUERY_PROBLEM)[2])[0]
    return domain.strip(), problem.strip()
