"""Problems with plans worked out by hand, the layouts that importers read, and what an import makes of them."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxppo.planning.datasets.config import ImportConfig, PlannerConfig
from jaxppo.planning.datasets.files import read_jsonl
from jaxppo.planning.importing.importers import import_problems
from jaxppo.run.console import Console

NO_PLANNER = PlannerConfig(planner="none", workers=1)
LAMPS = """(define (domain lamps)
  (:predicates (lamp ?x) (on ?x) (next ?x ?y))
  (:action switch-on :parameters (?x) :precondition (and (lamp ?x) (not (on ?x))) :effect (on ?x))
  (:action pass :parameters (?x ?y) :precondition (and (on ?x) (next ?x ?y)) :effect (and (on ?y) (not (on ?x)))))
"""
PIPES = """(define (domain pipes)
  (:predicates (open ?x) (joined ?x ?y))
  (:action turn :parameters (?x) :precondition (not (open ?x)) :effect (open ?x))
  (:action join :parameters (?x ?y) :precondition (and (open ?x) (open ?y)) :effect (joined ?x ?y)))
"""


def lamp_problem(n_lamps: int, goal: int, *, name: str = "lamps-problem", domain: str = "lamps") -> str:
    """A row of lamps, all off; lamp `goal` is to be on."""
    lamps = [f"l{number}" for number in range(n_lamps)]
    facts = [f"(lamp {lamp})" for lamp in lamps[:1]] + [f"(next {a} {b})" for a, b in pairwise(lamps)]
    return (
        f"(define (problem {name}) (:domain {domain}) (:objects {' '.join(lamps)})\n"
        f"  (:init {' '.join(facts)}) (:goal (on l{goal})))\n"
    )


def lamp_plan(goal: int) -> list[str]:
    """The only shortest plan: the first lamp, then one lamp after the other; goal + 1 steps."""
    return ["(switch-on l0)", *(f"(pass l{number} l{number + 1})" for number in range(goal))]


def pipe_problem(n_pipes: int) -> str:
    pipes = " ".join(f"p{number}" for number in range(n_pipes))
    return (
        f"(define (problem pipes-problem) (:domain pipes) (:objects {pipes}) (:init (open p0))"
        f" (:goal (joined p0 p{n_pipes - 1})))\n"
    )


def pipe_plan(n_pipes: int) -> list[str]:
    return [f"(turn p{n_pipes - 1})", f"(join p0 p{n_pipes - 1})"]


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files by their paths in a folder, which is returned."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def lines(plan: Sequence[str]) -> str:
    return "".join(f"{step}\n" for step in plan)


def lamp_files(cases: Mapping[str, tuple[int, int]], folder: str = "") -> dict[str, str]:
    """The domain of the lamps, and for each name a problem (how many lamps, which is to be on) with its plan."""
    files = {f"{folder}domain.pddl": LAMPS}
    for name, (n_lamps, goal) in cases.items():
        files[f"{folder}{name}.pddl"] = lamp_problem(n_lamps, goal)
        files[f"{folder}{name}.plan"] = lines(lamp_plan(goal))
    return files


def import_into(out: Path, source: Path, **settings):
    """Import everything into `test`, unless settings say otherwise: rows by id, reasons by source, and the report."""
    settings = {"split": "test", "planners": NO_PLANNER, "use_val": False, **settings}
    report = import_problems(ImportConfig(source=str(source), output_dir=str(out), **settings), Console(quiet=True))
    rows = {row["id"]: row for split in report["splits"] for row in read_jsonl(out / f"{split}.jsonl")}
    return rows, {entry["source"]: entry["reason"] for entry in rejections(out)}, report


def rejections(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def planbench_json(domain: str, instances: Sequence[Mapping[str, Any]], task: str = "task_1_plan_generation") -> str:
    return json.dumps(
        {"task": task, "prompt_type": "oneshot", "domain": domain, "instances": list(instances)}, indent=4
    )


def paper_row(domain: str, instance_id: Any, raw_plan: Any, prompt_id: int = 0, **others: Any) -> dict[str, Any]:
    instruction, given, output = "You switch lamps.", "As initial conditions I have that, ...", "<PLAN>...</PLAN>"
    return {
        "domain": domain,
        "instance_id": instance_id,
        "prompt_id": prompt_id,
        "mistake_rate": 0.2,
        "instruction": instruction,
        "input": given,
        "output": output,
        "plan_length": len(raw_plan) if isinstance(raw_plan, list) else 0,
        "raw_plan": raw_plan,
        "full_text_prompt": instruction + given + output,
        **others,
    }


def json_lines(rows: Sequence[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
