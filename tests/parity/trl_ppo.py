"""One update of TRL's `PPOTrainer` on prescribed completions, scores and mini-batches: what jaxppo's is compared with.

TRL's own `train()` runs unchanged. Replaced, and only while it runs, are the things that would make two programs see
different data: sampling, the reward model, the shuffling of the rows. Its local variables are copied on the way.
"""

import os

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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

# What `TrlPPOCase.options` need not repeat; they override it.
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
# Local variables of `train()` that make up `TrlPPOResult`, as they are when the first PPO epoch begins.
_ROLLOUT = ("logprobs", "ref_logprobs", "values", "kl", "rewards", "advantages", "returns", "scores")
_MASKS = ("padding_mask", "padding_mask_p1")
# Local variables of `train()` at the end of each micro batch.
_STEP = ("ratio", "logprobs_diff", "entropy", "pg_loss", "vf_loss", "pg_clipfrac", "vf_clipfrac", "approxkl", "loss")


@dataclass(frozen=True, eq=False)
class TrlPPOCase:
    """B rows for one update, and the models it starts from.

    Attributes:
        policy_folder: folder of a language model.
        reference_folder: the same.
        value_folder: folder of a sequence classifier with one label.
        tokenizer: with an eos token and another pad token.
        prompts: token ids per row, of any length from 1; no pad tokens.
        completions: token ids per row; each ends in the stop token or has `response_length` tokens; no pad tokens.
        scores: [B], the verdicts of the reward model.
        permutations: [num_ppo_epochs, B], the order of the rows in each epoch.
        options: fields of `PPOConfig`, `response_length` among them; not those that set the batch (one update of B
            rows, scored in one piece), which raise a TypeError.
    """

    policy_folder: Path
    reference_folder: Path
    value_folder: Path
    tokenizer: Any
    prompts: list[list[int]]
    completions: list[list[int]]
    scores: np.ndarray
    permutations: np.ndarray
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TrlPPOResult:
    """What the update computed; C is `response_length`, and True in a mask means padding, as in TRL.

    Attributes:
        logprobs: [B, C] fp32 of the policy before the update; 1 at padding.
        ref_logprobs: [B, C] fp32 of the reference; 1 at padding.
        values: [B, C] fp32, value of the state before each token, and of the state behind the last one; 0 elsewhere.
        kl: [B, C] fp32.
        rewards: [B, C] fp32, after whitening where that is on.
        advantages: [B, C] fp32, whitened.
        returns: [B, C] fp32.
        token_rewards: [B, C] fp32, before whitening.
        scores: [B] fp32, after the missing-EOS penalty.
        padding_mask: [B, C] bool, behind the last token.
        padding_mask_p1: [B, C] bool, the same without its first column.
        policy_before: torch state dict.
        policy_after: torch state dict.
        value_before: torch state dict.
        value_after: torch state dict.
        metrics: what TRL logs for the update.
        steps: per optimizer step `rows` [b], its rows of the batch; `ratio`, `logprobs_diff`, `entropy`,
            `padding_mask`, `padding_mask_p1` [b, C]; `loss`, `pg_loss`, `vf_loss`, `pg_clipfrac`, `vf_clipfrac`,
            `approxkl` [] (TRL's `approxkl` is a mean over padding too; `entropy` at padding means nothing).
    """

    logprobs: np.ndarray
    ref_logprobs: np.ndarray
    values: np.ndarray
    kl: np.ndarray
    rewards: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    token_rewards: np.ndarray
    scores: np.ndarray
    padding_mask: np.ndarray
    padding_mask_p1: np.ndarray
    policy_before: dict[str, np.ndarray]
    policy_after: dict[str, np.ndarray]
    value_before: dict[str, np.ndarray]
    value_after: dict[str, np.ndarray]
    metrics: dict[str, float]
    steps: list[dict[str, np.ndarray]]


def run_trl_ppo(case: TrlPPOCase) -> TrlPPOResult:
    """Run one PPO update of TRL on the given rows.

    Raises:
        ValueError: the rows or the permutations do not fit the batch or `response_length`.
        AssertionError: from TRL, `whiten_rewards` with fewer than 8 rows per mini-batch.
    """
    _check(case)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = _make_trainer(case, output_dir)
        recorder = _Recorder(case.permutations)
        before = _weights(trainer)
        with _prescribed(trainer, case, recorder):
            trainer.train()
    (policy_before, value_before), (policy_after, value_after) = before, _weights(trainer)
    return TrlPPOResult(
        **recorder.rollout,
        policy_before=policy_before,
        policy_after=policy_after,
        value_before=value_before,
        value_after=value_after,
        metrics=recorder.metrics,
        steps=recorder.steps,
    )


# ------------------------------------------------------------------------------------------------------------- the case


def _check(case: TrlPPOCase) -> None:
    batch, length = len(case.prompts), case.options["response_length"]
    expected = (case.options.get("num_ppo_epochs", PPOConfig.num_ppo_epochs), batch)
    if np.shape(case.permutations) != expected:
        raise ValueError(f"permutations: expected shape {expected}, got {np.shape(case.permutations)}")
    if len(case.completions) != batch or np.shape(case.scores) != (batch,):
        raise ValueError(f"expected {batch} completions and scores, one per prompt")
    if not all(0 < len(row) <= length for row in case.completions):
        raise ValueError(f"completions: expected 1 to {length} tokens each")
    if any(case.tokenizer.pad_token_id in row for row in case.prompts + case.completions):
        raise ValueError("prompts, completions: expected no pad tokens")


def _queries(case: TrlPPOCase) -> torch.Tensor:
    """Prompts, padded on the left to the longest."""
    width = max(map(len, case.prompts))
    return torch.tensor([[case.tokenizer.pad_token_id] * (width - len(row)) + row for row in case.prompts])


def _responses(case: TrlPPOCase) -> torch.Tensor:
    """Completions, padded on the right to `response_length`, as `generate` returns them when a row stops early."""
    length = case.options["response_length"]
    return torch.tensor([row + [case.tokenizer.pad_token_id] * (length - len(row)) for row in case.completions])


def _make_trainer(case: TrlPPOCase, output_dir: str) -> PPOTrainer:
    queries = _queries(case)
    trainer = PPOTrainer(
        args=_make_config(case, output_dir),
        processing_class=case.tokenizer,
        model=_load(AutoModelForCausalLM, case.policy_folder),
        ref_model=_load(AutoModelForCausalLM, case.reference_folder),
        reward_model=torch.nn.Identity(),  # never called, see `_prescribed`
        value_model=_load(AutoModelForSequenceClassification, case.value_folder),
        train_dataset=Dataset.from_dict({"input_ids": queries.tolist()}),
    )
    trainer.dataloader = [{"input_ids": queries}]  # TRL's shuffles
    return trainer


def _make_config(case: TrlPPOCase, output_dir: str) -> PPOConfig:
    batch = len(case.prompts)
    return PPOConfig(
        output_dir=output_dir,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        local_rollout_forward_batch_size=batch,
        total_episodes=batch,
        **(_DEFAULTS | case.options),
    )


def _load(kind: Any, folder: Path) -> Any:
    # Eager attention defines what the positions of left padding see; nothing else depends on them.
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)


# ----------------------------------------------------------------------------------------------- while `train()` runs


@contextmanager
def _prescribed(trainer: PPOTrainer, case: TrlPPOCase, recorder: "_Recorder") -> Iterator[None]:
    """Within TRL's module: prescribed rollouts, scores and permutations, and a recorder of what comes of them."""
    replacements = {
        "batch_generation": _make_batch_generation(_responses(case), trainer.args.temperature),
        "get_reward": _make_get_reward(trainer.reward_model, torch.tensor(case.scores, dtype=torch.float32)),
        "masked_whiten": recorder.masked_whiten,
        "np": SimpleNamespace(random=SimpleNamespace(permutation=recorder.permutation)),  # its only use of numpy
    }
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(ppo_trainer, **replacements))
        stack.enter_context(patch.object(trainer, "log", recorder.log))
        accumulate = _recording(trainer.accelerator.accumulate, recorder.steps)
        stack.enter_context(patch.object(trainer.accelerator, "accumulate", accumulate))
        yield


def _make_batch_generation(responses: torch.Tensor, temperature: float) -> Callable[..., Any]:
    """TRL's `batch_generation` for a sampler that happens to draw these responses."""

    def batch_generation(model, queries, _batch_size, pad_token_id, _config) -> tuple[torch.Tensor, torch.Tensor]:
        query_responses = torch.cat((queries, responses), dim=1)
        with torch.no_grad():
            logits = ppo_trainer.forward(model, query_responses, pad_token_id).logits
        return query_responses, logits[:, queries.shape[1] - 1 : -1] / (temperature + 1e-7)

    return batch_generation


def _make_get_reward(reward_model: torch.nn.Module, scores: torch.Tensor) -> Callable[..., Any]:
    """TRL's `get_reward`, which also serves the value model, with given scores for the reward model."""
    original = ppo_trainer.get_reward

    def get_reward(model, query_responses, pad_token_id, context_length) -> tuple[Any, torch.Tensor, Any]:
        if model is reward_model:
            return None, scores.clone(), None
        return original(model, query_responses, pad_token_id, context_length)

    return get_reward


class _Recorder:
    """Stands in for functions that `train()` calls, and copies its local variables."""

    def __init__(self, permutations: np.ndarray) -> None:
        self.rollout: dict[str, np.ndarray] = {}
        self.steps: list[dict[str, np.ndarray]] = []
        self.metrics: dict[str, float] = {}
        self._permutations = iter(np.asarray(permutations))
        self._whitened: list[np.ndarray] = []
        self._masked_whiten = ppo_trainer.masked_whiten

    def permutation(self, _size: int) -> np.ndarray:
        """The next prescribed order; the first call, when an epoch begins, finds the rollout complete."""
        if not self.rollout:
            self._record_rollout(sys._getframe(1).f_locals)
        return next(self._permutations)

    def _record_rollout(self, local: dict[str, Any]) -> None:
        self.rollout = {name: _to_numpy(local[name]) for name in _ROLLOUT + _MASKS}
        # Whitened are the rewards, if at all, and then the advantages.
        self.rollout["token_rewards"] = self._whitened[0] if len(self._whitened) == 2 else self.rollout["rewards"]

    def masked_whiten(self, values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """TRL's, with a copy of what went in."""
        self._whitened.append(_to_numpy(values))
        return self._masked_whiten(values, *args, **kwargs)

    def log(self, metrics: dict[str, float], *_: Any) -> None:
        """Keep the metrics instead of printing them."""
        self.metrics |= metrics


def _recording(accumulate: Callable[..., Any], steps: list[dict[str, np.ndarray]]) -> Callable[..., Any]:
    """`Accelerator.accumulate` that adds each finished micro batch to `steps`."""
    return lambda *models: _RecordedStep(accumulate(*models), steps)


class _RecordedStep(AbstractContextManager):
    """The context of one micro batch, in which TRL computes, steps and takes its statistics."""

    def __init__(self, inner: AbstractContextManager, steps: list[dict[str, np.ndarray]]) -> None:
        self.inner, self.steps = inner, steps

    def __enter__(self) -> None:
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is None:
            self.steps.append(_step(sys._getframe(1).f_locals))
        return self.inner.__exit__(*error)


def _step(local: dict[str, Any]) -> dict[str, np.ndarray]:
    rows = np.array(local["micro_batch_inds"])
    step = {name: _to_numpy(local[name]) for name in _STEP}
    return {"rows": rows} | step | {name: _to_numpy(local[name])[rows] for name in _MASKS}


# ------------------------------------------------------------------------------------------------------------- tensors


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy that later updates in place do not reach."""
    return tensor.detach().cpu().numpy().copy()


def _weights(trainer: PPOTrainer) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """State dicts of the policy and of the value model."""
    models = (trainer.policy_model, trainer.value_model)
    policy, value = ({name: _to_numpy(tensor) for name, tensor in m.state_dict().items()} for m in models)
    return policy, value
