"""What looks wrong in a run, and what to do about it: for the box at the top of its report."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, pvariance
from typing import NamedTuple

from jaxppo.report.line_charts import Band, short
from jaxppo.report.run_data import Run
from jaxppo.run.alarms import NEGATIVE_KL, REWARD_ALARMS

_FEWEST_UPDATES = 20  # before that, a trend is not told from noise


class Concern(NamedTuple):
    """Something that looks wrong."""

    what: str
    advice: str


_TOO_LOW = {"policy/approxkl_avg": "Raise `learning_rate`: the policy hardly moves."}
_TOO_HIGH = {
    "objective/kl": "Raise `kl_coef` or lower `learning_rate`, and look at samples for what the reward overlooks.",
    "policy/approxkl_avg": "Lower `learning_rate`, `num_ppo_epochs` or `num_mini_batches`: the updates are too large.",
    "policy/clipfrac_avg": "Lower `learning_rate` or `num_ppo_epochs`: much of each batch is clipped away.",
    "val/clipfrac_avg": "Raise `cliprange_value`: it is too small for the scale of the returns.",
    "rloo/reward_zero_std": "Choose other prompts, or raise `num_generations` or `temperature`: most groups teach "
    "nothing.",
    "completions/clipped_ratio": "Raise `response_length`, or set `missing_eos_penalty`: completions are cut.",
}
"""What to do where a metric ends above its band, or is below it on the whole: learning rates may fall to 0 by their
schedule. Bands of other metrics are for the eye alone."""


def concerns(run: Run) -> list[Concern]:
    """All that looks wrong in a run, what matters most first; empty where nothing does, or nothing is known yet."""
    return [*_broken(run), *_result(run), *_trends(run), *_outside_bands(run)]


def last_part(values: Sequence[float | None]) -> list[float]:
    """What is known of the last tenth of the values, and of the last five at least: where a metric has got to."""
    known = [value for value in values if value is not None]
    return known[-max(5, len(known) // 10) :]


def outside(value: float, band: Band) -> str:
    """`below 0.5` or `above 0.95`; nothing for a value within the band."""
    low, high = band
    if low is not None and value < low:
        return f"below {short(low)}"
    return f"above {short(high)}" if high is not None and value > high else ""


def band_text(band: Band) -> str:
    """`0 to 30`, `at least -1`."""
    low, high = band
    if low is None or high is None:
        return f"at most {short(high or 0.0)}" if low is None else f"at least {short(low)}"
    return short(low) if low == high else f"{short(low)} to {short(high)}"


def _broken(run: Run) -> Iterator[Concern]:
    """What must never happen, in any update."""
    bad = sum(1 for value in run.values("policy/nonfinite_steps") if value)
    if bad:
        yield Concern(
            f"{_updates(bad)} had a loss or gradient that was NaN or infinite.",
            "Lower `learning_rate` or `max_grad_norm`; the batches are in `bad_batches/` of the run folder.",
        )
    disagreements = sum(value or 0.0 for value in run.values("reward/val_disagreements"))
    if disagreements:
        yield Concern(
            f"VAL and the in-process validator disagree on {disagreements:g} plans.",
            "Please report the cases in `val_disagreements/`; `--validator val` has VAL judge all plans.",
        )
    for name, (most, message) in REWARD_ALARMS.items():
        over = [value for value in run.values(name) if value is not None and value > most]
        if over:
            yield Concern(
                f"`{name}` was above {most:g} in {_updates(len(over))}.", f"{message[0].upper()}{message[1:]}."
            )
    lowest = min((value for value in run.values("objective/kl_k1") if value is not None), default=0.0)
    if lowest < NEGATIVE_KL:
        yield Concern(
            f"`objective/kl_k1` fell to {short(lowest)}, below what chance explains.",
            "Sample from the policy's own distribution: no `top_k`, `top_p` or `min_p`, one precision throughout.",
        )


def _updates(count: int) -> str:
    return f"{count} update{'s' * (count != 1)}"


def _result(run: Run) -> Iterator[Concern]:
    """The evaluation says that the model has got worse."""
    split, measure = run.headline_split, run.headline
    before, after = (results.get(split or "", {}).get(measure or "") for results in (run.before, run.after))
    if not isinstance(before, dict) or not isinstance(after, dict) or measure == "loss":
        return
    if None not in (before["low"], after["high"]) and after["high"] < before["low"]:
        yield Concern(
            f"After training `{split}` is worse than before, beyond chance.",
            "Take an earlier checkpoint (`python -m jaxppo.export --step`), or train again with a lower "
            "`learning_rate` or a higher `kl_coef`.",
        )


def _trends(run: Run) -> Iterator[Concern]:
    """What a whole curve says."""
    scores = [value for value in run.values("objective/scores") if value is not None]
    if len(scores) >= _FEWEST_UPDATES:
        first, last = scores[: len(scores) // 5], scores[-(len(scores) // 5) :]
        gain, noise = fmean(last) - fmean(first), sqrt((pvariance(first) + pvariance(last)) / len(first))
        if gain < -2 * noise < 0:
            yield Concern(
                f"The reward fell from {short(fmean(first))} to {short(fmean(last))}.",
                "Lower `learning_rate`, and see whether `policy/approxkl_avg` was in its range.",
            )
        elif gain <= 2 * noise:
            yield Concern(
                f"The reward is flat: {short(fmean(first))} at first, {short(fmean(last))} at last.",
                "See that completions of a batch earn different scores (`objective/scores_std`), then raise "
                "`learning_rate` or train longer.",
            )
    spread, top = last_part(run.values("objective/scores_std")), last_part(run.values("objective/scores"))
    if spread and fmean(spread) < 0.01 * max(1e-6, *map(abs, top)):
        yield Concern(
            "All completions earn alike: `objective/scores_std` ends near 0.",
            "Choose prompts that are solved sometimes, or raise `temperature`; nothing is learned from equal scores.",
        )
    entropy = [value for value in run.values("policy/entropy_avg") if value is not None]
    if len(entropy) >= _FEWEST_UPDATES and fmean(last_part(entropy)) < 0.1 * fmean(entropy[:5]):
        yield Concern(
            "Exploration has ended: `policy/entropy_avg` is below a tenth of what it was.",
            "Lower `learning_rate`, or raise `kl_coef` or `entropy_coef`.",
        )
    fit = last_part(run.values("value/explained_variance"))
    if len(run.records) >= _FEWEST_UPDATES and fit and fmean(fit) < 0.0:
        yield Concern(
            "Values explain less than a constant would: `value/explained_variance` ends below 0.",
            "Raise `value_learning_rate`, or give the value model a trunk of its own (`value_model: separate`).",
        )


def _outside_bands(run: Run) -> Iterator[Concern]:
    """Metrics that end outside their healthy range."""
    for name, advice in _TOO_HIGH.items():
        end, band = last_part(run.values(name)), run.band(name)
        if end and band and outside(fmean(end), band).startswith("above"):
            yield Concern(f"`{name}` ends at {short(fmean(end))}, {outside(fmean(end), band)}.", advice)
    for name, advice in _TOO_LOW.items():
        known, band = [value for value in run.values(name) if value is not None], run.band(name)
        if known and band and outside(fmean(known), band).startswith("below"):
            yield Concern(f"`{name}` is {short(fmean(known))} on the whole, {outside(fmean(known), band)}.", advice)
