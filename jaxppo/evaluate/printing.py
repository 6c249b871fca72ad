"""What an evaluation prints: results in lines, samples before and after, warnings."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.console import Console

_SHORT_PROMPT = 160
"""Characters of a prompt that a terminal shows whole."""
_WORTH_CUTTING = 40
"""Fewest characters to leave out at the beginning of all prompts: the mark for what is missing costs room, too."""
_SAMPLES_SHOWN = 3
"""Samples of an update."""


def print_before_and_after(
    console: Console,
    split: str,
    samples_before: Sequence[Mapping[str, Any]],
    samples_after: Sequence[Mapping[str, Any]],
) -> None:
    """Print a table of the samples of a split: completion before and after training, and score."""
    before_by_id = {sample["id"]: sample for sample in samples_before}
    prompts = telling_parts([sample["prompt"] for sample in samples_after])
    rows = []
    for sample, prompt in zip(samples_after, prompts, strict=True):
        # `eval_samples.json` may lack those from before.
        earlier = before_by_id.get(sample["id"])
        if earlier is None:
            continue
        row = {"prompt": prompt, "before": earlier["completion"], "after": sample["completion"]}
        rows.append(
            row | {"score": f"{score_text(earlier['score'])} -> {score_text(sample['score'])}"}
        )
    if rows:
        columns = ["prompt", "before", "after", "score"]
        console.sample_table(f"{split}, before and after", rows, columns)


def show_samples(console: Console, samples: Sequence[dict[str, Any]]) -> None:
    """Show some samples of an update, with all that is known about their rewards."""
    # What all prompts of the update have in common is cut, so those that are not shown count, too.
    prompts = telling_parts([sample["prompt"] for sample in samples])
    rows = [
        sample | {"prompt": prompt, "score": score_text(sample["score"])}
        for sample, prompt in zip(samples[:_SAMPLES_SHOWN], prompts, strict=False)
    ]
    other_columns = ("step", "id", "prompt", "completion", "score")
    reward_parts = [name for name in rows[0] if name not in other_columns]
    columns = ["prompt", "completion", *reward_parts, "score"]
    console.sample_table(f"Samples of update {samples[0]['step']}", rows, columns)


def telling_parts(prompts: Sequence[str]) -> list[str]:
    """Return what to show of prompts where there is little room: long ones without what all of them begin with.

    That is the domain of PDDL prompts, for instance. Of a single long prompt the end is shown, where its question is.
    """
    longest = max(map(len, prompts), default=0)
    if longest <= _SHORT_PROMPT:
        return list(prompts)
    if len(set(prompts)) == 1:
        num_shared = max(0, longest - _SHORT_PROMPT)
    else:
        # The first and the last in alphabetical order differ where any two do.
        pairs = zip(min(prompts), max(prompts), strict=False)
        num_shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    # Cut before a whole word.
    num_cut = max(prompts[0].rfind(blank, 0, num_shared) + 1 for blank in (" ", "\n"))
    if num_cut < _WORTH_CUTTING:
        return list(prompts)
    return [f"… {prompt[num_cut:]}" for prompt in prompts]


def print_outcome(
    console: Console,
    evals: Mapping[str, Any],
    samples: Mapping[str, Any],
    method: str,
) -> None:
    """Print what training changed on the headline split: answers to the same prompts, then the rate in one line.

    Without a split nothing was measured, and nothing is printed.

    Args:
        console: where to.
        evals: content of `eval.json`.
        samples: content of `eval_samples.json`; may be empty.
        method: what lies between before and after, such as "PPO".
    """
    split = evals["headline_split"]
    if split is None:
        return
    samples_before = samples.get("before", {}).get(split, [])
    samples_after = samples.get("after", {}).get(split, [])
    print_before_and_after(console, split, samples_before, samples_after)
    console.stage("Result")
    result_before = evals["before"][split]
    result_after = evals["after"][split]
    title, key = (
        ("valid plans", "validity") if "validity" in result_after else ("mean reward", "reward")
    )
    console.result(
        f"{title} on {split}: {interval_text(result_before[key])} before, {interval_text(result_after[key])} after "
        f"{method} (n = {result_after[key]['n']}, 95 % intervals)"
    )


def score_text(score: float | None) -> str:
    """Return a score with two digits; `none` for a completion without a score."""
    return "none" if score is None else f"{score:.2f}"


def summary_line(split: str, result: dict[str, Any]) -> str:
    """Return one line about a split for the terminal."""
    # Data that are no planning problems have no verdicts.
    if "validity" not in result:
        reward = result["reward"]
        return f"{split}: mean reward {interval_text(reward)} of {reward['n']}, ended {result['ended']['rate']:.1%}"
    validity = result["validity"]
    return (
        f"{split}: valid {interval_text(validity)} of {validity['n']} ({result['validator']}), "
        f"executable {result['executability']['rate']:.1%}, reward {result['mean_reward']:.3f}"
    )


def print_results(console: Console, results: dict[str, dict[str, Any]]) -> None:
    """Print one line per split, and a warning where the validator failed."""
    for split, result in results.items():
        console.result(summary_line(split, result))
    warn_of_failures(console, results)


def warn_of_failures(console: Console, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of each split where the validator failed."""
    for split, result in results.items():
        if result.get("validator_failed"):
            console.warn(
                f"{split}: {result['validator_failed']:.1%} of the plans got no verdict and count as not valid; "
                "raise val_timeout_s, or --eval_validator builtin"
            )
