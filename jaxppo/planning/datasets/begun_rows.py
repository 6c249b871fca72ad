"""Further rows for a problem: the same one with the first steps of its reference plan behind the prompt."""

import random

from jaxppo.errors import DataError, PddlError
from jaxppo.planning.datasets.rows import Row, reference_plans
from jaxppo.planning.language.plans import format_action, parse_action
from jaxppo.planning.prompts import render_completion
from jaxppo.planning.transform.restart import problem_after


def begun_rows(row: Row, count: int, seed: int) -> list[Row]:
    """Return the row with its plan begun, by another number of steps in each: see `begun_row`.

    Args:
        row: a row with all columns.
        count: number of rows; fewer where the plan has no more steps but the last.
        seed: decides the numbers of steps, together with the row's id.
    """
    steps = range(1, len(reference_plans(row["reference_plan"])[0]))
    drawn = random.Random(f"{seed}/{row['id']}").sample(steps, min(count, len(steps)))
    return [begun_row(row, done) for done in sorted(drawn)]


def begun_row(row: Row, done: int) -> Row:
    """Return a row whose prompt goes on with the first steps of its (first) reference plan, and asks for the rest.

    Its problem begins in the state that those steps lead to, so that a completion is judged as the rest of a plan.

    Args:
        row: a row with all columns.
        done: number of steps, at least 1 and fewer than the plan has.

    Raises:
        DataError: the row, and why its plan cannot be begun, see `problem_after`.
    """
    plan = [parse_action(action) for action in reference_plans(row["reference_plan"])[0]]
    style, domain_pddl, rest = row["prompt_style"], row["domain_pddl"], plan[done:]
    completion = render_completion(rest, style, domain_pddl)
    given = render_completion(plan, style, domain_pddl).removesuffix(completion).rstrip(" ")
    prompt = row["prompt"]
    try:
        later = problem_after(row["problem_pddl"], domain_pddl, plan[:done])
    except (DataError, PddlError) as error:
        raise DataError(f"row {row['id']}: {error}") from None
    return row | {
        "id": f"{row['id']}-begun-{done}",
        "prompt": prompt + ("" if prompt[-1:].isspace() else " ") + given,
        "completion": completion,
        "reference_plan": [format_action(action) for action in rest],
        "problem_pddl": later,
        "plan_length": len(rest),
    }
