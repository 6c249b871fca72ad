"""PlanBench's JSON files: `{task, prompt_type, domain, instances: [{instance_id, query, ground_truth_plan}]}`.

Source: Valmeekam et al., PlanBench, NeurIPS 2023 datasets and benchmarks; github.com/karthikv792/LLMs-Planning.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.datasets.files import read_text
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import checked_row
from jaxppo.planning.importing.instance_files import Entry, Instances, collect
from jaxppo.planning.importing.source_files import file_label, list_files
from jaxppo.planning.importing.source_problems import Reading, unreadable

_TASK_NAMES = {1: "plan generation", 2: "optimality", 3: "verification"}
_PLANNING_TASKS = (1, 2)
"""In the other tasks the plan is not one for the instance as it is in its file."""
_TASK_NUMBER = re.compile(r"(?:task_|t)(\d+)")


def read_planbench(source: Path, pddl_dir: Path) -> Reading:
    """Read a JSON file of PlanBench, or all in a folder, with the PDDL of its instances."""
    instances = Instances(pddl_dir)
    return collect(_entries(source, instances.configs), instances)


def is_planbench(path: Path) -> bool:
    """Return whether a JSON file holds instances."""
    try:
        content = parse_json(read_text(path))
    except DataError:
        return False
    return isinstance(content, dict) and isinstance(content.get("instances"), list)


def _entries(source: Path, configs: Collection[str]) -> Iterator[Entry | Rejected]:
    for path in list_files(source, "*.json"):
        label = file_label(path, source)
        try:
            content = read_instances(path, label)
        except DataError as error:
            yield unreadable(label, error)
            continue
        domain = config_of(path, content, configs)
        # One bad instance is one line: a file has hundreds.
        for number, instance in enumerate(content["instances"], 1):
            try:
                yield _entry(instance, domain, f"{label}: instance {number}")
            except DataError as error:
                yield unreadable(label, error, domain=domain)


def read_instances(
    path: Path, label: str, tasks: Sequence[int] = _PLANNING_TASKS
) -> dict[str, Any]:
    """Read a JSON file of PlanBench of one of some tasks: it has `domain` and `instances`.

    Raises:
        DataError: it is no such file, or of another task; `label` names it.
    """
    content = parse_json(read_text(path))
    if not isinstance(content, dict):
        raise DataError(f"{label}: expected a JSON object, got {type(content).__name__}")
    checked_row(content, label, {"domain": str, "instances": list})
    if task_number(content) not in tasks:
        names = [f"{_TASK_NAMES[task]} (task_{task})" for task in tasks]
        alternatives = f"{', '.join(names[:-1])} or {names[-1]}"
        raise DataError(f"{label}: task: expected {alternatives}, got {content.get('task')!r:.60}")
    return content


def task_number(content: Mapping[str, Any]) -> int | None:
    """Return the number of a file's task, `task_1_plan_generation` or `t1`; 1 where it names none."""
    # Older files name it `t1`, or not at all.
    match = _TASK_NUMBER.match(str(content.get("task", "t1")))
    return int(match[1]) if match else None


def config_of(path: Path, content: Mapping[str, Any], configs: Collection[str]) -> str:
    """Return the configuration of a file: a folder above it, as in `results/<config>/<model>/`, else its domain.

    Some files call their domain `blocksworld_zero_shot` or `blocksworld/generated_basic`.
    """
    # Resolved, so that a file that is named alone
    # (`t1.json` in its own folder) still has its folders.
    folders = path.resolve().parts[-3:-1]
    return next((name for name in folders if name in configs), content["domain"])


def _entry(instance: Any, domain: str, place: str) -> Entry:
    if not isinstance(instance, dict) or not isinstance(instance.get("instance_id"), int | str):
        raise DataError(
            f"{place}: field 'instance_id': expected a number or a name, got {instance!s:.60}"
        )
    query = instance.get("query") or ""
    plan = instance.get("ground_truth_plan") or ""
    # The repository's two trees differ: a plan is a text, a list of steps, or `{"plan": either}`.
    if isinstance(plan, dict):
        plan = plan.get("plan")
    if isinstance(plan, list) and all(isinstance(step, str) for step in plan):
        plan = "\n".join(plan)
    if not isinstance(plan, str) or not isinstance(query, str):
        raise DataError(
            f"{place}: fields 'ground_truth_plan' and 'query': expected text, got {plan!r:.60}, {query!r:.60}"
        )
    name = str(instance["instance_id"])
    return Entry(domain, name, plan, place, {"instance": name, "source_prompt": query})
