"""Result files of PlanBench, of both trees: `<config>/<model>/task_1_plan_generation_<prompt>.json` and their kin.

Judged are plan generation (task 1), optimality (task 2: the plan has to cost what the reference costs) and verification
(task 3: what the model says of a plan has to be true).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import (
    GENERATION,
    OPTIMALITY,
    VERIFICATION,
    PlanAnswer,
    UnusableAnswer,
)
from jaxppo.planning.answers.columns import PLANBENCH, read_row, with_column_names
from jaxppo.planning.importing.planbench import config_of, read_instances, task_number

_TASKS = {1: GENERATION, 2: OPTIMALITY, 3: VERIFICATION}
_NAME = re.compile(r"task_\d+(?:_plan_(?:generation|optimality|verification))?_?(.*)")
_ONE_SHOT = "one_shot"
"""What PlanBench calls a file without a further word."""
_DOMAIN = "[DOMAIN]\n"
_QUERY_PROBLEM = "[QUERY PROBLEM]\n"
_ANY_HEADING = re.compile(r"^\[[A-Z _]+\]\s*$", re.MULTILINE)
_PLAN = "[PLAN]"
_PLAN_END = "[PLAN END]"
_CLAIM = re.compile(r"\bplan is (in)?valid\b", re.IGNORECASE)


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
        content = read_instances(path, label, tuple(_TASKS))
    except DataError as error:
        # The line begins with the label already.
        yield UnusableAnswer.from_error(label, DataError(str(error).removeprefix(f"{label}: ")))
        return
    task = _TASKS[task_number(content) or 1]  # `read_instances` lets no other number pass
    defaults = _names_of_path(path, task) | {"domain": config_of(path, content, configs)}
    columns = with_column_names(PLANBENCH, column_names)
    n_unanswered = 0
    for number, instance in enumerate(content["instances"], 1):
        place = f"{label}: entry {number}"
        try:
            if not isinstance(instance, dict):
                raise DataError(f"expected a JSON object, got {type(instance).__name__}")
            place = f"{label}: instance {instance.get('instance_id')!s:.40}"
            if task == VERIFICATION:
                instance = _as_verification(instance)
            elif not any(
                instance.get(name) is not None for name in (*columns["plan"], "llm_raw_response")
            ):
                # Counted, and one line in the end: whole files may have no answers, or dialogues in their place.
                n_unanswered += 1
                continue
            answer = read_row(instance, columns, place, defaults)
            yield answer._replace(
                task=task, prompt_pddl=_prompt_pddl(instance), claim=instance.get("claim")
            )
        except DataError as error:
            yield UnusableAnswer.from_error(place, error)
    total = len(content["instances"])
    if n_unanswered:
        reason = f"{n_unanswered} of {total} instances have neither an answer nor an extracted plan"
        yield UnusableAnswer(label, reason)


def _names_of_path(path: Path, task: str) -> dict[str, str]:
    """Return the model, the folder of a file, and the kind of prompt, the end of its name; tasks 2 and 3 before it."""
    # Resolved, so that a file that is named alone still has its folders.
    folders = path.resolve().parts
    match = _NAME.fullmatch(path.stem)
    kind = match[1] if match else path.stem
    if task == GENERATION:
        prompt = kind or _ONE_SHOT
    elif kind and kind != _ONE_SHOT:
        prompt = f"{task}_{kind}"
    else:
        prompt = task
    return {"model": folders[-2] if len(folders) > 1 else "", "prompt": prompt}


def _prompt_pddl(instance: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return domain and problem where the prompt shows them as PDDL: they are what the model was asked about."""
    query = instance.get("query")
    if not isinstance(query, str) or _DOMAIN not in query or _QUERY_PROBLEM not in query:
        return None
    # The last ones: examples come before what is asked.
    domain = _ANY_HEADING.split(query.rpartition(_DOMAIN)[2])[0]
    problem = _ANY_HEADING.split(query.rpartition(_QUERY_PROBLEM)[2])[0]
    return domain.strip(), problem.strip()


def _as_verification(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Write an instance of task 3 with the plan of its query as the plan, and what the model says of it as `claim`.

    Raises:
        DataError: the query has no plan, or there is no answer.
    """
    query = instance.get("query")
    answer = instance.get("llm_raw_response")
    if not isinstance(query, str) or _PLAN not in query:
        raise DataError(f"query: expected a plan between {_PLAN} and {_PLAN_END}, got none")
    if not isinstance(answer, str):
        raise DataError("llm_raw_response: expected an answer, got none")
    extracted = instance.get("extracted_llm_plan")
    # In task 3 the "extracted plan" is PlanBench's reading of the claim: `{"valid": true, ...}`.
    claim = extracted.get("valid") if isinstance(extracted, dict) else None
    if not isinstance(claim, bool):
        # PlanBench has not extracted the claim: it is looked for in the text, and may be missing.
        match = _CLAIM.search(answer)
        claim = None if match is None else match[1] is None
    return {
        "instance_id": instance.get("instance_id"),
        "llm_raw_response": query.rpartition(_PLAN)[2].partition(_PLAN_END)[0],
        "llm_correct": instance.get("llm_correct_binary"),
        "claim": claim,
    }
