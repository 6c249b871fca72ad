"""What an evaluation prints: results in lines, samples before and after, warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.console import Console

_SHORT_PROMPT = 160
"""Characters of a prompt that a terminal shows, the last ones."""
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
    rows = []
    for sample in samples_after:
        # `eval_samples.json` may lack those from before.
        earlier = before_by_id.get(sample["id"])
        if earlier is None:
            continue
        row = {
            "prompt": short_prompt(sample["prompt"]),
            "before": earlier["completion"],
            "after": sample["completion"],
            "score": f"{score_text(earlier['score'])} -> {score_text(sample['score'])}",
        }
        rows.append(row)
    if rows:
        columns = ["prompt", "before", "after", "score"]
        console.sample_table(f"{split}, before and after", rows, columns)


def show_samples(console: Console, samples: Sequence[dict[str, Any]]) -> None:
    """Show some samples of an update, with all that is known about their rewards."""
    rows = []
    for sample in samples[:_SAMPLES_SHOWN]:
        prompt = short_prompt(sample["prompt"])
        rows.append(sample | {"prompt": prompt, "score": score_text(sample["score"])})
    other_columns = ("step", "id", "prompt", "completion", "score")
    reward_parts = [name for name in rows[0] if name not in other_columns]
    columns = ["prompt", "completion", *reward_parts, "score"]
    console.sample_table(f"Samples of update {samples[0]['step']}", rows, columns)


def short_prompt(prompt: str) -> str:
    """Return a prompt as a terminal shows it: of a long one the end, where its question is."""
    return prompt if len(prompt) <= _SHORT_PROMPT else f"… {prompt[-_SHORT_PROMPT:]}"


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
    parts = []
    # Data that are no planning problems have no verdicts.
    if "validity" in result:
        validity = result["validity"]
        parts += [
            f"valid {interval_text(validity)} of {validity['n']} ({result['validator']})",
            f"executable {result['executability']['rate']:.1%}",
            f"reward {result['mean_reward']:.3f}",
        ]
    elif "reward" in result:
        reward = result["reward"]
        parts += [
            f"mean reward {interval_text(reward)} of {reward['n']}",
            f"ended {result['ended']['rate']:.1%}",
        ]
    if "loss" in result:
        parts.append(
            f"loss {result['loss']:.4f} nats per token over {result['loss_tokens']:,} tokens"
        )
    return f"{split}: {', '.join(parts)}"


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
