"""Result files of PlanBench, of both trees: `<config>/<model>/task_1_plan_generation_<prompt>.json` and their kin.

Judged are plan generation (task 1), optimality (task 2: the plan has to cost what the reference costs) and verification
(task 3: what the model says of a plan has to be true).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxppo.errors import DataError
from jaxppo.planning.answers.answer import GENERATION, OPTIMALITY, VERIFICATION, Answer, Unread
from jaxppo.planning.answers.columns import PLANBENCH, read_row, with_named
from jaxppo.planning.importing.planbench import config_of, read_instances, task_number

_TASKS = {1: GENERATION, 2: OPTIMALITY, 3: VERIFICATION}
_NAME = re.compile(r"task_\d+(?:_plan_(?:generation|optimality|verification))?_?(.*)")
_ONE_SHOT = "one_shot"
"""What PlanBench calls a file without a further word."""
_DOMAIN, _QUERY_PROBLEM, _ANY_HEADING = (
    "[DOMAIN]\n",
    "[QUERY PROBLEM]\n",
    re.compile(r"^\[[A-Z _]+\]\s*$", re.MULTILINE),
)
_PLAN, _PLAN_END = "[PLAN]", "[PLAN END]"
_CLAIM = re.compile(r"\bplan is (in)?valid\b", re.IGNORECASE)


def read_results(
    path: Path, label: str, named: Mapping[str, str], configs: Collection[str]
) -> Iterator[Answer | Unread]:
    """Read the answers of a file; what is wrong is a line, and so is the number of instances without an answer.

    Args:
        path: the file.
        label: the file for messages.
        named: columns that were asked for, see `columns.parse_columns`.
        configs: names of PlanBench's configurations.
    """
    try:
        content = read_instances(path, label, tuple(_TASKS))
    except DataError as error:
        yield Unread.of(label, DataError(str(error).removeprefix(f"{label}: ")))
        return
    task = _TASKS[task_number(content) or 1]  # `read_instances` lets no other number pass
    folders = path.resolve().parts
    match = _NAME.fullmatch(path.stem)
    kind = (match[1] if match else path.stem) or _ONE_SHOT
    prompt = kind if task == GENERATION else "_".join([task, *([kind] if kind != _ONE_SHOT else [])])
    known = {
        "model": folders[-2] if len(folders) > 1 else "",
        "domain": config_of(path, content, configs),
        "prompt": prompt,
    }
    columns = with_named(PLANBENCH, named)
    unanswered = dialogues = 0
    for number, instance in enumerate(content["instances"], 1):
        where = f"{label}: entry {number}"
        try:
            if not isinstance(instance, dict):
                raise DataError(f"expected a JSON object, got {type(instance).__name__}")
            where = f"{label}: instance {instance.get('instance_id')!s:.40}"
            if task == VERIFICATION:
                instance = _as_verification(instance)
            elif not any(instance.get(name) is not None for name in (*columns["plan"], "llm_raw_response")):
                unanswered += "messages" not in instance
                dialogues += "messages" in instance
                continue
            answer = read_row(instance, columns, where, known)
            yield answer._replace(task=task, given=_given(instance), claim=instance.get("claim"))
        except DataError as error:
            yield Unread.of(where, error)
    total = len(content["instances"])
    if unanswered:
        yield Unread(label, f"{unanswered} of {total} instances have no answer")
    if dialogues:
        yield Unread(label, f"{dialogues} of {total} instances are dialogues without an extracted plan: not judged")


def _given(instance: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return domain and problem where the prompt shows them as PDDL: they are what the model was asked about."""
    query = instance.get("query")
    if not isinstance(query, str) or _DOMAIN not in query or _QUERY_PROBLEM not in query:
        return None
    domain = _ANY_HEADING.split(query.rpartition(_DOMAIN)[2])[0]
    problem = _ANY_HEADING.split(query.rpartition(_QUERY_PROBLEM)[2])[0]
    return domain.strip(), problem.strip()


def _as_verification(instance: Mapping[str, Any]) -> dict[str, Any]:
    """Write an instance of task 3 with the plan of its query as the plan, and what the model says of it as `claim`.

    Raises:
        DataError: the query has no plan, or there is no answer.
    """
    query, answer = instance.get("query"), instance.get("llm_raw_response")
    if not isinstance(query, str) or _PLAN not in query:
        raise DataError(f"query: expected a plan between {_PLAN} and {_PLAN_END}, got none")
    if not isinstance(answer, str):
        raise DataError("llm_raw_response: expected an answer, got none")
    extracted = instance.get("extracted_llm_plan")
    claim = extracted.get("valid") if isinstance(extracted, dict) else None
    said = _CLAIM.search(answer)
    if not isinstance(claim, bool):
        claim = None if said is None else said[1] is None
    plan = query.rpartition(_PLAN)[2].partition(_PLAN_END)[0]
    correct = instance.get("llm_correct_binary")
    return {
        "instance_id": instance.get("instance_id"),
        "llm_raw_response": plan,
        "llm_correct": correct,
        "claim": claim,
    }
