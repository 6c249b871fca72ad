"""What the comparisons with TRL's `RLOOTrainer` and `GRPOTrainer` share: our update, and how its outcome is judged."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from jaxppo import data, hf
from jaxppo.config import TrainConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl.ppo import PPO

from .conftest import EOS, PAD, Models, make_rows

SCORES = np.array([0.2, 1.0, -0.4, 0.37, 0.9, 0.1, 1.0, 0.0], np.float32)


def run_ours(config: TrainConfig, saved: Models, folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """Trajectories, statistics, and weights after the update by torch's names."""
    copies = config.rl.group_size
    prompts, completions = make_rows(config.batch_size, copies)
    ppo = PPO(config, saved.config, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    policy, reference = (hf.load_pretrained(f)[1] for f in (saved.policy, saved.reference))
    state, rollout = ppo.init_state(policy), ppo.rollout_of(completions)
    assert state.params.keys() == {"policy"}
    sequences = ppo.pack(data.pad_left(prompts[::copies], 8, PAD), rollout)
    scored = ppo.score(state, reference if config.rl.kl_coef else None, sequences, rollout)
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, SCORES)
    state, update_stats = ppo.update(state, trajectories, 0)
    hf.save_pretrained(folder, saved.config, jax.device_get(state.params["policy"]), saved.tokenizer)
    after = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    weights = {name: tensor.numpy() for name, tensor in after.items()}
    return jax.device_get((trajectories, stats | update_stats)), weights


def changes_like(after: dict[str, np.ndarray], trl: Any) -> None:
    """Per tensor, our change and TRL's differ by at most 1 % of TRL's largest change."""
    assert after.keys() == trl.policy_before.keys()
    for name, before in trl.policy_before.items():
        change = trl.policy_after[name] - before
        assert np.abs(change).max() > 1e-5, f"{name} did not move"
        difference = np.abs(after[name] - before - change).max() / np.abs(change).max()
        assert difference < 0.01, f"{name}: {difference:.2%} of the largest change"
