"""What the comparisons with TRL's `RLOOTrainer` and `GRPOTrainer` share: both updates, and how they are compared."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.types import Trajectories

from .conftest import Models, make_rows
from .ours import run_ours
from .trl_groups import TrlGroupsResult, run_trl

ROWS = 8
SCORES = np.array([0.2, 1.0, -0.4, 0.37, 0.9, 0.1, 1.0, 0.0], np.float32)
OURS_OF_TRL = {
    "beta": "kl_coef",
    "num_iterations": "num_ppo_epochs",
    "epsilon": "cliprange",
    "epsilon_high": "cliprange_high",
    "max_completion_length": "response_length",
}
"""TRL's fields whose names are not ours."""


class Both(NamedTuple):
    """An update by jaxppo and by TRL, and the options that it had, by TRL's names."""

    trajectories: Trajectories
    stats: dict[str, Any]
    weights: dict[str, np.ndarray]  # ours after the update, by torch's names
    trl: TrlGroupsResult
    options: dict[str, Any]


def run_both(algorithm: str, options: dict[str, Any], saved: Models, folder: Path) -> Both:
    """One update from the same weights, completions and scores."""
    names = {OURS_OF_TRL.get(name, name): value for name, value in options.items()}
    config = replace(
        TrainConfig(),
        algorithm=algorithm,
        lr_scheduler_type="constant",
        batch_size=ROWS,
        total_episodes=ROWS,
        **names,
    )
    ours = run_ours(config, saved, SCORES, folder)
    assert ours.value is None
    trl = run_trl(algorithm, saved, *make_rows(ROWS, options["num_generations"]), SCORES, options)
    return Both(ours.trajectories, ours.stats, ours.policy, trl, options)


def assert_equal_stats(both: Both, expected: dict[str, float]) -> None:
    """Ours are as expected, and so are those that both algorithms have."""
    expected = expected | {
        "grad_norm": np.mean(both.trl.grad_norms),
        "policy/entropy_avg": np.mean([step["entropy"] for step in both.trl.metrics]),
        "completions/mean_length": both.trl.metrics[0]["completions/mean_length"],
        "completions/min_length": both.trl.metrics[0]["completions/min_length"],
        "completions/max_length": both.trl.metrics[0]["completions/max_length"],
        "completions/clipped_ratio": both.trl.metrics[0]["completions/clipped_ratio"],
    }
    for name, value in expected.items():
        np.testing.assert_allclose(both.stats[name], value, atol=1e-4, rtol=1e-4, err_msg=name)
