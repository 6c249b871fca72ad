"""What an evaluation prints: results in lines, samples before and after, warnings."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.console import Console, ProgressView


def print_before_and_after(
    console: Console, split: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """Print a table of the samples of a split: completion before and after training, and score."""
    earlier = {sample["id"]: sample for sample in before}
    rows = [
        {
            "prompt": sample["prompt"],
            "before": earlier[sample["id"]]["completion"],
            "after": sample["completion"],
            "score": f"{score_text(earlier[sample['id']]['score'])} -> {score_text(sample['score'])}",
        }
        for sample in after
        if sample["id"] in earlier
    ]
    if rows:
        console.sample_table(f"{split}, before and after", rows, ["prompt", "before", "after", "score"])


def show_samples(progress: ProgressView, samples: Sequence[dict[str, Any]], shown: int = 3) -> None:
    """Show some samples of an update, with all that is known about their rewards."""
    rows = [sample | {"score": score_text(sample["score"])} for sample in samples[:shown]]
    parts = [name for name in rows[0] if name not in ("step", "id", "prompt", "completion", "score")]
    progress.samples(f"Samples of update {samples[0]['step']}", rows, ["prompt", "completion", *parts, "score"])


def print_outcome(console: Console, evals: Mapping[str, Any], samples: Mapping[str, Any], method: str) -> None:
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
    before, after = (evals[moment][split] for moment in ("before", "after"))
    earlier, later = (samples.get(moment, {}).get(split, []) for moment in ("before", "after"))
    print_before_and_after(console, split, earlier, later)
    console.stage("Result")
    title, key = ("valid plans", "validity") if "validity" in after else ("mean reward", "reward")
    console.result(
        f"{title} on {split}: {interval_text(before[key])} before, {interval_text(after[key])} after {method} "
        f"(n = {after[key]['n']}, 95 % intervals)"
    )


def score_text(score: float | None) -> str:
    """Return a score with two digits; `none` for a completion without a score."""
    return "none" if score is None else f"{score:.2f}"


def summary_line(split: str, result: dict[str, Any]) -> str:
    """Return one line about a split for the terminal."""
    if "validity" not in result:
        reward = result["reward"]
        return f"{split}: mean reward {interval_text(reward)} of {reward['n']}, ended {result['ended']['rate']:.1%}"
    v, e = result["validity"], result["executability"]
    return (
        f"{split}: valid {interval_text(v)} of {v['n']} ({result['validator']}), "
        f"executable {e['rate']:.1%}, reward {result['mean_reward']:.3f}"
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
