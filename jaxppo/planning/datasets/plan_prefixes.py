"""Further rows for a problem: the first steps of its reference plan go into the prompt, the rest is to be completed."""

import random

from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.language.plans import format_action, parse_action
from jaxppo.planning.prompts import render_completion
from jaxppo.planning.transform.restart import problem_after


def plan_prefix_rows(row: Row, count: int, seed: int) -> list[Row]:
    """Return the row with prefixes of its plan, each of another length: see `plan_prefix_row`.

    Args:
        row: a row with all columns.
        count: number of rows; fewer where the plan has fewer prefixes that leave a step.
        seed: decides the lengths, together with the row's id.
    """
    lengths = range(1, len(reference_plans(row["reference_plan"])[0]))
    chosen_lengths = random.Random(f"{seed}/{row['id']}").sample(lengths, min(count, len(lengths)))
    return [plan_prefix_row(row, prefix_length) for prefix_length in sorted(chosen_lengths)]


def plan_prefix_row(row: Row, prefix_length: int) -> Row:
    """Return a row whose prompt ends in the first steps of its (first) reference plan, and asks for the others.

    Its problem begins in the state that those steps lead to, so that a completion is judged as the end of a plan.

    Args:
        row: a row with all columns.
        prefix_length: number of steps, at least 1 and fewer than the plan has.

    Raises:
        DataError: the row, and why its plan cannot be begun, see `problem_after`.
    """
    plan = [parse_action(action) for action in reference_plans(row["reference_plan"])[0]]
    remaining = plan[prefix_length:]
    style = row["prompt_style"]
    domain_pddl = row["domain_pddl"]
    completion = render_completion(remaining, style, domain_pddl)
    # The whole plan is rendered and its end cut off, so that prompt and completion together read as
    # a row without a prefix does, to the token.
    prefix = render_completion(plan, style, domain_pddl).removesuffix(completion).rstrip(" ")
    prompt = row["prompt"]
    separator = "" if prompt[-1:].isspace() else " "
    try:
        problem_pddl = problem_after(row["problem_pddl"], domain_pddl, plan[:prefix_length])
    except (DataError, PddlError) as error:
        raise DataError(f"row {row['id']}: {error}") from None
    return row | {
        "id": f"{row['id']}-begun-{prefix_length}",
        "prompt": prompt + separator + prefix,
        "completion": completion,
        "reference_plan": [format_action(action) for action in remaining],
        "problem_pddl": problem_pddl,
        "plan_length": len(remaining),
    }
