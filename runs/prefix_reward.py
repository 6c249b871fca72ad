"""`plan` with `--partial prefix`, as a function of its own: which_reward.sh adds it to `plan` with `--partial goal`."""

from typing import Any

from jaxppo.reward_functions.plan import PlanScoring, make_plan_reward

_score = make_plan_reward(PlanScoring(partial="prefix"), cache_size=10_000)


def prefix(
    prompts: list[str],
    completions: list[str],
    completion_ids: list[list[int]],
    domain_pddl: list[str],
    problem_pddl: list[str],
    reference_plan: list[list[Any]],
    prompt_style: list[str],
) -> list[float]:
    """Score plans; takes no `log_metric`, since `plan` reports of the same completions already."""
    columns = {
        "problem_pddl": problem_pddl,
        "reference_plan": reference_plan,
        "prompt_style": prompt_style,
    }
    return _score(prompts, completions, completion_ids, domain_pddl=domain_pddl, **columns)
