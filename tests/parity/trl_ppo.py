"""One update of TRL's `PPOTrainer` on prescribed completions, scores and mini-batches: what jaxppo's is compared with.

TRL's own `train()` runs unchanged. Replaced, and only while it runs, are the things that would make two programs see
different data: sampling, the reward model, the shuffling of the rows. Its local variables are copied on the way.
"""

import os

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from .conftest import Models

# What the options need not repeat; they override it.
_DEFAULTS = {
    "bf16": False,
    "disable_tqdm": True,
    "eval_strategy": "no",
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "lr_scheduler_type": "constant",
    "num_sample_generations": 0,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
}
# Local variables of `train()` as they are when the first PPO epoch begins. At padding log-probabilities are 1; values
# are those of the state before each token and of the one after the last; rewards are whitened where that is on, and
# advantages always are; scores are those after the missing-EOS penalty; the second mask lacks the first one's column.
_ROLLOUT = ("logprobs", "ref_logprobs", "values", "rewards", "advantages", "returns", "scores")
_MASKS = ("padding_mask", "padding_mask_p1")
# Local variables of `train()` at the end of each micro batch.
_STEP = ("ratio", "logprobs_diff", "entropy")


@dataclass(frozen=True, eq=False)
class TrlPPOResult:
    """What the update computed; C is `response_length`, and True in a mask means padding, as in TRL."""

    rollout: dict[str, np.ndarray]  # `_ROLLOUT` and `_MASKS`, [B, C] each, but for the scores [B]
    policy_before: dict[str, np.ndarray]
    policy_after: dict[str, np.ndarray]
    value_before: dict[str, np.ndarray]
    value_after: dict[str, np.ndarray]
    metrics: dict[str, float]  # what TRL logs for the update
    steps: list[dict[str, np.ndarray]]  # of each optimizer step `_STEP` and `_MASKS` of its rows [b, C]


def run_trl_ppo(
    saved: Models,
    prompts: list[list[int]],
    completions: list[list[int]],
    scores: np.ndarray,
    permutations: np.ndarray,
    options: dict[str, Any],
) -> TrlPPOResult:
    """Run one PPO update of TRL on B rows.

    Args:
        saved: the models that it starts from; the value model is a sequence classifier with one label.
        prompts: token ids, without pad tokens.
        completions: each ends in the stop token or has `response_length` tokens; no pad tokens.
        scores: [B], the verdicts of the reward model.
        permutations: [num_ppo_epochs, B], the order of the rows in each epoch.
        options: fields of `PPOConfig`, `response_length` among them; none that sets the batch.
    """
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = _make_trainer(saved, prompts, options, output_dir)
        recorder = _Recorder(permutations)
        before = _weights(trainer)
        # As `generate` returns them when a row stops early.
        width, pad_id = options["response_length"], saved.tokenizer.pad_token_id
        responses = _padded(completions, width, pad_id, on_the_left=False)
        with _prescribed(trainer, responses, torch.tensor(scores, dtype=torch.float32), recorder):
            trainer.train()
    (policy_before, value_before), (policy_after, value_after) = before, _weights(trainer)
    return TrlPPOResult(
        rollout=recorder.rollout,
        policy_before=policy_before,
        policy_after=policy_after,
        value_before=value_before,
        value_after=value_after,
        metrics=recorder.metrics,
        steps=recorder.steps,
    )


def _padded(rows: list[list[int]], width: int, pad_id: int, *, on_the_left: bool) -> torch.Tensor:
    padding = [[pad_id] * (width - len(row)) for row in rows]
    return torch.tensor([pad + row if on_the_left else row + pad for row, pad in zip(rows, padding, strict=True)])


def _make_trainer(saved: Models, prompts: list[list[int]], options: dict[str, Any], output_dir: str) -> PPOTrainer:
    batch = len(prompts)
    queries = _padded(prompts, max(map(len, prompts)), saved.tokenizer.pad_token_id, on_the_left=True)
    trainer = PPOTrainer(
        args=PPOConfig(
            output_dir=output_dir,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=1,
            local_rollout_forward_batch_size=batch,
            total_episodes=batch,
            **(_DEFAULTS | options),
        ),
        processing_class=saved.tokenizer,
        model=_load(AutoModelForCausalLM, saved.policy),
        ref_model=_load(AutoModelForCausalLM, saved.reference),
        reward_model=torch.nn.Identity(),  # never called, see `_prescribed`
        value_model=_load(AutoModelForSequenceClassification, saved.value),
        train_dataset=Dataset.from_dict({"input_ids": queries.tolist()}),
    )
    trainer.dataloader = [{"input_ids": queries}]  # TRL's shuffles
    return trainer


def _load(kind: Any, folder: Path) -> Any:
    # Eager attention defines what the positions of left padding see; nothing else depends on them.
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)


@contextmanager
def _prescribed(
    trainer: PPOTrainer, responses: torch.Tensor, scores: torch.Tensor, recorder: "_Recorder"
) -> Iterator[None]:
    """Within TRL's module: prescribed rollouts, scores and permutations, and a recorder of what comes of them."""
    get_reward = ppo_trainer.get_reward

    def batch_generation(model, queries, _batch_size, pad_token_id, _config) -> tuple[torch.Tensor, torch.Tensor]:
        """TRL's for a sampler that happens to draw these responses."""
        query_responses = torch.cat((queries, responses), dim=1)
        with torch.no_grad():
            logits = ppo_trainer.forward(model, query_responses, pad_token_id).logits
        return query_responses, logits[:, queries.shape[1] - 1 : -1] / (trainer.args.temperature + 1e-7)

    def given_reward(model, query_responses, pad_token_id, context_length) -> tuple[Any, torch.Tensor, Any]:
        """TRL's, which also serves the value model, with given scores for the reward model."""
        if model is trainer.reward_model:
            return None, scores.clone(), None
        return get_reward(model, query_responses, pad_token_id, context_length)

    accumulate = trainer.accelerator.accumulate
    replacements = {
        "batch_generation": batch_generation,
        "get_reward": given_reward,
        "np": SimpleNamespace(random=SimpleNamespace(permutation=recorder.permutation)),  # its only use of numpy
    }
    with (
        patch.multiple(ppo_trainer, **replacements),
        patch.object(trainer, "log", lambda metrics, *_: recorder.metrics.update(metrics)),
        patch.object(trainer.accelerator, "accumulate", lambda *models: recorder.step(accumulate(*models))),
    ):
        yield


class _Recorder:
    """Gives the orders of the rows, and copies the local variables of `train()`."""

    def __init__(self, permutations: np.ndarray) -> None:
        self.rollout: dict[str, np.ndarray] = {}
        self.steps: list[dict[str, np.ndarray]] = []
        self.metrics: dict[str, float] = {}
        self._permutations = iter(np.asarray(permutations))

    def permutation(self, _size: int) -> np.ndarray:
        """The next prescribed order; the first call, when an epoch begins, finds the rollout complete."""
        if not self.rollout:
            local = sys._getframe(1).f_locals
            self.rollout = {name: _to_numpy(local[name]) for name in _ROLLOUT + _MASKS}
        return next(self._permutations)

    @contextmanager
    def step(self, accumulating: AbstractContextManager) -> Iterator[None]:
        """The context of one micro batch, in which TRL computes, steps and takes its statistics."""
        with accumulating:
            yield
            # Behind this generator stands `contextlib`, and behind that TRL.
            local = sys._getframe(2).f_locals
            rows = np.array(local["micro_batch_inds"])
            step = {name: _to_numpy(local[name]) for name in _STEP}
            self.steps.append(step | {name: _to_numpy(local[name])[rows] for name in _MASKS})


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy that later updates in place do not reach."""
    return tensor.detach().cpu().numpy().copy()


def _weights(trainer: PPOTrainer) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """State dicts of the policy and of the value model."""
    models = (trainer.policy_model, trainer.value_model)
    policy, value = ({name: _to_numpy(tensor) for name, tensor in m.state_dict().items()} for m in models)
    return policy, value
