"""PlanBench's JSON files: `{task, prompt_type, domain, instances: [{instance_id, query, ground_truth_plan}]}`.

Source: Valmeekam et al., PlanBench, NeurIPS 2023 datasets and benchmarks; github.com/karthikv792/LLMs-Planning.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxppo.config.reading import parse_json
from jaxppo.errors import DataError
from jaxppo.planning.datasets.files import read_text
from jaxppo.planning.datasets.folder import Rejected
from jaxppo.planning.datasets.rows import checked_row
from jaxppo.planning.importing.instance_files import Entry, collect
from jaxppo.planning.importing.pddl_folder import natural_key
from jaxppo.planning.importing.source_problems import Reading

# In the other tasks the plan is not one for the instance as it is in its file.
_TASKS = ("task_1", "task_2")


def read_planbench(source: Path, pddl_dir: Path) -> Reading:
    """Read a JSON file of PlanBench, or all in a folder, with the PDDL of its instances."""
    files = [source] if source.is_file() else source.rglob("*.json")
    ordered = sorted(files, key=lambda path: natural_key(path.as_posix()))
    return collect((entry for path in ordered for entry in _entries(path, source)), pddl_dir, "given")


def is_planbench(path: Path) -> bool:
    """Return whether a JSON file holds instances."""
    try:
        content = parse_json(read_text(path))
    except DataError:
        return False
    return isinstance(content, dict) and isinstance(content.get("instances"), list)


def _entries(path: Path, source: Path) -> Iterator[Entry | Rejected]:
    label = path.name if path == source else path.relative_to(source).as_posix()
    try:
        content = read_instances(path, label)
    except DataError as error:
        yield Rejected("", "", "", label, f"unreadable: {error}")
        return
    for number, instance in enumerate(content["instances"], 1):
        try:
            yield _entry(instance, content, f"{label}: instance {number}")
        except DataError as error:
            yield Rejected("", content["domain"], "", label, f"unreadable: {error}")


def read_instances(path: Path, label: str) -> dict[str, Any]:
    """Read a JSON file of PlanBench whose task is to plan: `domain` and `instances` are there.

    Raises:
        DataError: it is no such file; `label` names it.
    """
    content = parse_json(read_text(path))
    if not isinstance(content, dict):
        raise DataError(f"{label}: expected a JSON object, got {type(content).__name__}")
    checked_row(content, label, {"domain": str, "instances": list})
    task = str(content.get("task", _TASKS[0]))
    if not task.startswith(_TASKS):
        raise DataError(f"{label}: task: expected plan generation (task_1) or optimality (task_2), got {task!r:.60}")
    return content


def _entry(instance: Any, content: dict[str, Any], where: str) -> Entry:
    if not isinstance(instance, dict) or not isinstance(instance.get("instance_id"), int | str):
        raise DataError(f"{where}: field 'instance_id': expected a number or a name, got {instance!s:.60}")
    plan, query = (instance.get(field) or "" for field in ("ground_truth_plan", "query"))
    if not isinstance(plan, str) or not isinstance(query, str):
        raise DataError(
            f"{where}: fields 'ground_truth_plan' and 'query': expected text, got {plan!r:.60}, {query!r:.60}"
        )
    columns = {"instance": str(instance["instance_id"]), "source_prompt": query}
    return Entry(content["domain"], str(instance["instance_id"]), plan, where, columns)
