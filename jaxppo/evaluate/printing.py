"""What an evaluation prints: results in lines, samples before and after, warnings."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxppo.evaluate.intervals import interval_text
from jaxppo.run.console import Console, ProgressView

_SHORT_PROMPT = 160
"""Characters of a prompt that a terminal shows whole."""
_WORTH_CUTTING = 40
"""Characters at the beginning of all prompts that are left out at least."""


def print_before_and_after(
    console: Console, split: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    """Print a table of the samples of a split: completion before and after training, and score."""
    earlier = {sample["id"]: sample for sample in before}
    prompts = telling_parts([sample["prompt"] for sample in after])
    rows = [
        {
            "prompt": prompt,
            "before": earlier[sample["id"]]["completion"],
            "after": sample["completion"],
            "score": f"{score_text(earlier[sample['id']]['score'])} -> {score_text(sample['score'])}",
        }
        for sample, prompt in zip(after, prompts, strict=True)
        if sample["id"] in earlier
    ]
    if rows:
        console.sample_table(f"{split}, before and after", rows, ["prompt", "before", "after", "score"])


def show_samples(progress: ProgressView, samples: Sequence[dict[str, Any]], shown: int = 3) -> None:
    """Show some samples of an update, with all that is known about their rewards."""
    prompts = telling_parts([sample["prompt"] for sample in samples])
    rows = [
        sample | {"prompt": prompt, "score": score_text(sample["score"])}
        for sample, prompt in zip(samples[:shown], prompts, strict=False)
    ]
    parts = [name for name in rows[0] if name not in ("step", "id", "prompt", "completion", "score")]
    progress.samples(f"Samples of update {samples[0]['step']}", rows, ["prompt", "completion", *parts, "score"])


def telling_parts(prompts: Sequence[str]) -> list[str]:
    """Return what to show of prompts where there is little room: long ones without what all of them begin with.

    That is the domain of PDDL prompts, for instance. Of a single long prompt the end is shown, where its question is.
    """
    longest = max(map(len, prompts), default=0)
    if longest <= _SHORT_PROMPT:
        return list(prompts)
    # The first and the last in order differ where any two do.
    pairs = zip(min(prompts), max(prompts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if len(set(prompts)) == 1:
        shared = max(0, longest - _SHORT_PROMPT)
    # Whole words, and nothing is cut to save a few characters.
    shared = max(prompts[0].rfind(blank, 0, shared) + 1 for blank in (" ", "\n"))
    return list(prompts) if shared < _WORTH_CUTTING else [f"… {prompt[shared:]}" for prompt in prompts]


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
