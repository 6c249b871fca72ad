"""Run folders for the tests of reports, written by hand."""

import json
import math

from jaxppo.config import TrainConfig
from jaxppo.config.sources import preset_values, replace, write_yaml
from jaxppo.evaluate.intervals import wilson
from jaxppo.run.jsonl import JsonlLog

HOSTILE = "</script><script>document.title = 'run'</script><img src=x onerror=alert(1)>"
SNEAKY = "up\u202edown\x1b[31m\u200bend\x00"


def record(step, updates):
    """A healthy update that knows more than the one before."""
    share = step / updates
    return {
        "step": step,
        "episode": 16 * step,
        "epoch": share,
        "lr": 1e-4,
        "objective/scores": 0.4 + 0.4 * share + 0.01 * math.sin(7 * step),
        "objective/scores_std": 0.3,
        "objective/kl": 5 * share,
        "objective/kl_k1": 5 * share,
        "policy/approxkl_avg": 0.002,
        "policy/clipfrac_avg": 0.05,
        "policy/entropy_avg": 1 - 0.3 * share,
        "policy/nonfinite_steps": 0,
        "value/explained_variance": None if step == 1 else 0.8 * share,
        "completions/clipped_ratio": 0.01,
        "completions/mean_length": 20 + share,
        "reward/plan_valid": 0.5 * share,
        "reward/mean": 0.4 + 0.4 * share,
        "rewards/plan/mean": 0.4 + 0.4 * share,
        "time/rollout_s": 1.0,
        "time/reward_s": 0.5,
        "time/reward_wait_s": 0.25,
        "time/update_s": 30.0 if step == 1 else 2.0,
        "throughput/samples_per_s": 4.0,
        "compile/count": 3 if step == 1 else 0,
        "compile/s": 20.0 if step == 1 else 0.0,
    }


def splits(rate, n=100):
    """Results as runs of early versions wrote them."""
    return {"test": {"validity": wilson(rate * n, n), "executability": wilson(n, n), "mean_reward": rate}}


def write_run(
    folder,
    *,
    updates=40,
    records=None,
    samples=(),
    before=None,
    after=None,
    command="python -m jaxppo.train",
    **changes,
):
    """A run folder of `train`; without `after` it is not finished."""
    folder.mkdir(parents=True)
    base = replace(TrainConfig(), **preset_values("train", "default"))
    write_yaml(replace(base, **changes), folder / "config.yaml", command)
    records = [record(step, updates) for step in range(1, updates + 1)] if records is None else records
    with JsonlLog(folder / "metrics.jsonl") as log:
        for one in records:
            log.append(one)
    if samples:
        with JsonlLog(folder / "samples.jsonl") as log:
            for sample in samples:
                log.append(sample)
    evals = {"headline_split": "test"} | {k: v for k, v in {"before": before, "after": after}.items() if v is not None}
    if before or after:
        (folder / "eval.json").write_text(json.dumps(evals))
    return folder


def sample(step, name="p1", completion="light a", **more):
    """A record of `samples.jsonl`."""
    return {
        "step": step,
        "id": name,
        "prompt": "a b",
        "completion": completion,
        "score": 0.5,
        "verdict": "valid",
        **more,
    }
