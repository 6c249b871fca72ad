"""A tree of files as PlanBench has them, of our own Blocksworld: configurations, instances, results of models."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxppo.planning import format_action, parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.plans import Action
from jaxppo.planning.solve.blocksworld import solve
from tests.planning.import_samples import planbench_json, write_files

COLOURS = """amber azure beige black blue brown coral cyan gold gray green ivory jade lilac lime mint navy olive orange
pink plum red ruby teal violet white""".split()  # noqa: SIM905
CONFIG = (
    "instance_dir: blocksworld/generated_basic\n"
    "domain_file: blocksworld/generated_domain.pddl\n"
    "domain_name: blocksworld\n"
    "instances_template: instance-{}.pddl\n"
    'actions: {pick-up: "pick up the {}", put-down: "put down the {}", stack: "stack the {} on top of the {}", '
    'unstack: "unstack the {} from on top of the {}"}\n'
    f"encoded_objects: {json.dumps({chr(97 + i): f'{colour} block' for i, colour in enumerate(COLOURS)})}\n"
    f"encoded_objects_compact: {json.dumps({chr(97 + i): colour for i, colour in enumerate(COLOURS)})}\n"
)
SENTENCES = {
    "pick-up": "Pick up the {} block",
    "put-down": "Put down the {} block",
    "stack": "Stack the {} block on top of the {} block",
    "unstack": "Unstack the {} block from on top of the {} block",
}


class Instance(NamedTuple):
    """A problem and a shortest plan for it."""

    number: int
    pddl: str
    plan: tuple[Action, ...]


def make_instances(count: int, blocks: int = 4, seed: int = 0) -> list[Instance]:
    """Problems with plans of at least four steps."""
    rng, made = random.Random(seed), []
    while len(made) < count:
        pddl = BLOCKSWORLD.generate_problem(blocks, rng, f"bw-{len(made) + 1}")
        plan = tuple(solve(parse_problem(pddl, parse_domain(BLOCKSWORLD.pddl))))
        if len(plan) >= 4:
            made.append(Instance(len(made) + 1, pddl, plan))
    return made


def lines(plan: Sequence[Action]) -> str:
    return "".join(f"{format_action(action)}\n" for action in plan)


def sentence(action: Action) -> str:
    return SENTENCES[action[0]].format(*(COLOURS[ord(name) - 97] for name in action[1:]))


def numbered(plan: Sequence[Action]) -> str:
    return "\n".join(f"{number}. **{sentence(action)}**" for number, action in enumerate(plan, 1))


def record(instance: Instance, extracted: str, correct: bool | None, raw: str = "", **others: Any) -> dict[str, Any]:
    """An entry of a result file."""
    return {
        "instance_id": instance.number,
        "query": "As initial conditions I have that, ...",
        "llm_raw_response": raw,
        "extracted_llm_plan": extracted,
        "llm_correct": correct,
        "ground_truth_plan": lines(instance.plan),
        **others,
    }


def write_instances(root: Path, instances: Sequence[Instance]) -> Path:
    """Write configuration, domain and problems; returns the folder of the problems."""
    files = {f"instances/blocksworld/generated_basic/instance-{one.number}.pddl": one.pddl for one in instances}
    files |= {"instances/blocksworld/generated_domain.pddl": BLOCKSWORLD.pddl, "configs/blocksworld.yaml": CONFIG}
    return write_files(root, files) / "instances"


def write_results(
    root: Path, model: str, entries: Sequence[Mapping[str, Any]], prompt: str = "", config: str = "blocksworld"
) -> Path:
    """Write a result file; returns the folder of all results."""
    name = f"task_1_plan_generation{prompt and f'_{prompt}'}.json"
    return write_files(root, {f"results/{config}/{model}/{name}": planbench_json(config, entries)}) / "results"


def without_goal(instance: Instance) -> str:
    """A plan that can be carried out and stops before the goal."""
    return lines(instance.plan[:-2])


def without_first(instance: Instance) -> str:
    """A plan whose first step cannot be carried out: what it holds was not picked up."""
    return lines(instance.plan[1:])


def renamed(instance: Instance) -> str:
    """The plan in names of another obfuscation."""
    return lines([(f"x-{action[0]}", *action[1:]) for action in instance.plan])
