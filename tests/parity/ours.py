"""An update of jaxppo on the rows of `make_rows`, and how its parameters are compared with TRL's."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from jaxppo import data, hf
from jaxppo.config import TrainConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl.learner import PPO
from jaxppo.types import ModelOutputs, Trajectories

from .conftest import EOS, PAD, Models, make_rows


class Ours(NamedTuple):
    scored: ModelOutputs
    trajectories: Trajectories
    stats: dict[str, Any]
    policy: dict[str, np.ndarray]  # after the update, by torch's names
    value: dict[str, np.ndarray] | None


def run_ours(config: TrainConfig, saved: Models, scores: np.ndarray, folder: Path) -> Ours:
    """One update from the saved weights."""
    copies = config.rl.group_size
    prompts, completions = make_rows(config.batch_size, copies)
    ppo = PPO(config, saved.config, EOS, PAD, DataParallel(devices=jax.devices()[:1]))
    policy, reference, value = (hf.load_pretrained(f)[1] for f in (saved.policy, saved.reference, saved.value))
    state = ppo.init_state(policy, value if ppo.has_value_model else None)
    rollout = ppo.rollout_of(completions)
    sequences = ppo.pack(data.pad_left(prompts[::copies], 8, PAD), rollout)
    scored = ppo.score(state, reference if config.rl.kl_coef else None, sequences, rollout)
    state, trajectories, stats = ppo.make_trajectories(state, scored, rollout, sequences, scores)
    state, update_stats = ppo.update(state, trajectories, 0)
    after = {}
    for name, params in jax.device_get(state.params).items():
        hf.save_pretrained(folder / name, saved.config, params, saved.tokenizer)
        kind = AutoModelForCausalLM if name == "policy" else AutoModelForSequenceClassification
        # The names that weights have in memory differ from those on disk.
        weights = kind.from_pretrained(folder / name, dtype=torch.float32).state_dict()
        after[name] = {name: tensor.numpy() for name, tensor in weights.items()}
    return Ours(*jax.device_get((scored, trajectories, stats | update_stats)), after["policy"], after.get("value"))


def assert_equal_changes(after: dict[str, np.ndarray], trl_before: dict, trl_after: dict, least: float = 1e-5) -> None:
    """Per tensor, our change and TRL's differ by at most 1 % of TRL's largest change."""
    assert after.keys() == trl_before.keys()
    for name, before in trl_before.items():
        change = trl_after[name] - before
        assert np.abs(change).max() > least, f"{name} did not move"
        difference = np.abs(after[name] - before - change).max() / np.abs(change).max()
        assert difference < 0.01, f"{name}: {difference:.2%} of the largest change"
