"""One generation batch through `trl.RLOOTrainer` or `trl.GRPOTrainer`, with prompts, completions and scores that the
caller prescribes.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from .conftest import Models

TRAINER_LOGS = ("loss", "grad_norm", "learning_rate", "epoch", "step", "step_time")
"""What the log of an optimizer step holds beside TRL's own metrics that a test can compare."""
# One generation batch of all rows, reused in every step, in plain float32.
FIXED = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 1,
    "shuffle_dataset": False,
    "lr_scheduler_type": "constant",
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}


def no_dropout(folder: Path) -> dict[str, float]:
    """TRL's own `disable_dropout` leaves the attention of a model as it is, which reads its rate from the config."""
    config = AutoConfig.from_pretrained(folder)
    return {name: 0.0 for name in ("attention_dropout", "hidden_dropout") if hasattr(config, name)}


@dataclass(frozen=True)
class TrlGroupsResult:
    """What TRL computed, rows in the order of the case; one entry per optimizer step in the lists."""

    advantages: np.ndarray  # [B]
    old_logps: np.ndarray | None  # [B], log probability of each completion before the first step; None: not kept
    completion_mask: np.ndarray  # [B, C], 1 on the tokens that count, C being the longest completion
    policy_before: dict[str, np.ndarray]  # by their torch names
    policy_after: dict[str, np.ndarray]
    losses: list[float]  # before the update of the step
    grad_norms: list[float]  # before clipping
    metrics: list[dict[str, float]]  # those of the generation (`reward`, `kl`, `completions/*`) in the first step only


class _Prescribed:
    """A trainer that takes prompts and completions from the caller and keeps the scored batch."""

    prompts: list[list[int]]
    completions: list[list[int]]
    scored: dict[str, Any]

    def _tokenize_prompts(self, prompts: list) -> tuple[list[list[int]], None, dict]:
        """Give the prescribed ids; the text of a prompt is the index of its group."""
        size = self.num_generations
        assert [int(text) for text in prompts] == [row // size for row in range(len(self.prompts))]
        return [list(ids) for ids in self.prompts], None, {}

    def _generate_and_score_completions(self, inputs: list) -> dict[str, Any]:
        assert not hasattr(self, "scored"), "a second generation batch"
        self.scored = super()._generate_and_score_completions(inputs)
        return self.scored


class PrescribedRLOOTrainer(_Prescribed, RLOOTrainer):
    def _generate_single_turn(self, prompt_ids: list, images: None, multimodal_fields: dict) -> list[list[int]]:
        return [list(ids) for ids in self.completions]


class PrescribedGRPOTrainer(_Prescribed, GRPOTrainer):
    def _generate_single_turn(self, *_: Any) -> tuple[list[list[int]], None]:
        return [list(ids) for ids in self.completions], None


TRAINERS = {"rloo": (PrescribedRLOOTrainer, RLOOConfig), "grpo": (PrescribedGRPOTrainer, GRPOConfig)}


def run_trl(
    algorithm: str,
    saved: Models,
    prompts: list[list[int]],
    completions: list[list[int]],
    scores: np.ndarray,
    options: dict[str, Any],
) -> TrlGroupsResult:
    """Run `num_iterations` optimizer steps of TRL on a batch, on the CPU in float32.

    Args:
        algorithm: "rloo" or "grpo".
        saved: the models; the reference is read where `beta` is not 0.
        prompts: token ids of B rows; those of a group are adjacent and equal.
        completions: at least one token each; they end in the end token or are cut.
        scores: [B], what the reward function returns.
        options: fields of `RLOOConfig` or `GRPOConfig`.
    """
    kind, config = TRAINERS[algorithm]
    groups = len(prompts) // options["num_generations"]

    def prescribed_scores(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        assert [list(ids) for ids in completion_ids] == completions
        return [float(score) for score in scores]

    with tempfile.TemporaryDirectory() as output_dir:
        args = config(
            output_dir=output_dir,
            per_device_train_batch_size=len(prompts),
            max_steps=options["num_iterations"],
            model_init_kwargs=no_dropout(saved.policy),
            **FIXED,
            **options,
        )
        trainer = kind(
            model=str(saved.policy),
            reward_funcs=[prescribed_scores],
            args=args,
            # TRL repeats each row `num_generations` times.
            train_dataset=Dataset.from_dict({"prompt": [str(group) for group in range(groups)]}),
            processing_class=saved.tokenizer,
        )
        trainer.prompts, trainer.completions = prompts, completions
        trainer.remove_callback(PrinterCallback)
        if trainer.ref_model is not None:  # TRL itself takes the policy for the reference
            reference = AutoModelForCausalLM.from_pretrained(
                saved.reference, dtype=torch.float32, **no_dropout(saved.reference)
            )
            trainer.ref_model = trainer.accelerator.prepare_model(reference.eval(), evaluation_mode=True)
        before = _parameters(trainer.model)
        with patch(f"trl.trainer.{algorithm}_trainer.shuffle_sequence_dict", lambda batch: batch):
            trainer.train()
    old_logps = trainer.scored.get("old_logps")
    steps = [logs for logs in trainer.state.log_history if "loss" in logs]
    return TrlGroupsResult(
        advantages=trainer.scored["advantages"].numpy(),
        old_logps=None if old_logps is None else old_logps.numpy(),
        completion_mask=trainer.scored["completion_mask"].numpy(),
        policy_before=before,
        policy_after=_parameters(trainer.model),
        losses=[logs["loss"] for logs in steps],
        grad_norms=[logs["grad_norm"] for logs in steps],
        metrics=[{name: value for name, value in logs.items() if name not in TRAINER_LOGS} for logs in steps],
    )


def _parameters(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}
