"""One generation batch through `trl.RLOOTrainer` or `trl.GRPOTrainer`, with prompts, completions and scores that the
caller prescribes.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

TRAINER_LOGS = ("loss", "grad_norm", "learning_rate", "epoch", "step", "step_time")
"""What the log of an optimizer step holds beside TRL's own metrics that a test can compare."""


def no_dropout(folder: Path) -> dict[str, float]:
    """TRL's own `disable_dropout` leaves the attention of a model as it is, which reads its rate from the config."""
    config = AutoConfig.from_pretrained(folder)
    return {name: 0.0 for name in ("attention_dropout", "hidden_dropout") if hasattr(config, name)}


@dataclass(frozen=True)
class TrlGroupsCase:
    """A batch of B rows; the rows of a group are adjacent and have equal prompts.

    Args:
        algorithm: "rloo" or "grpo".
        policy_folder: folder of a language model, trained.
        reference_folder: the same for the reference, read where beta is not 0.
        tokenizer: a `PreTrainedTokenizerFast` with an end token and another pad token.
        prompts: token ids of each row.
        completions: token ids of each row, at least one; they end in the end token or are cut.
        scores: [B], what the reward function returns.
        options: fields of `RLOOConfig` or `GRPOConfig`.
    """

    algorithm: str
    policy_folder: Path
    reference_folder: Path
    tokenizer: Any
    prompts: list[list[int]]
    completions: list[list[int]]
    scores: np.ndarray
    options: dict[str, Any]


@dataclass(frozen=True)
class TrlGroupsResult:
    """What TRL computed, rows in the order of the case; one entry per optimizer step in the lists.

    Args:
        advantages: [B] fp32.
        old_logps: [B] fp32, log probability of each completion before the first step; None: it was not kept.
        completion_mask: [B, C], 1 on the tokens that count, C being the longest completion.
        policy_before: parameters before the first step, by their torch names.
        policy_after: the same after the last step.
        losses: loss of each step, before its update.
        grad_norms: gradient norm of each step, before clipping.
        metrics: TRL's metrics; those of the generation (`reward`, `kl`, `completions/*`) are in the first step only.
    """

    advantages: np.ndarray
    old_logps: np.ndarray | None
    completion_mask: np.ndarray
    policy_before: dict[str, np.ndarray]
    policy_after: dict[str, np.ndarray]
    losses: list[float]
    grad_norms: list[float]
    metrics: list[dict[str, float]]


class _Prescribed:
    """A trainer that takes prompts and completions from a case and keeps the scored batch."""

    case: TrlGroupsCase
    scored: dict[str, Any]

    def _tokenize_prompts(self, prompts: list) -> tuple[list[list[int]], None, dict]:
        """Give the prescribed ids; the text of a prompt is the index of its group."""
        size = self.num_generations
        assert [int(text) for text in prompts] == [row // size for row in range(len(self.case.prompts))]
        return [list(ids) for ids in self.case.prompts], None, {}

    def _generate_and_score_completions(self, inputs: list) -> dict[str, Any]:
        assert not hasattr(self, "scored"), "a second generation batch"
        self.scored = super()._generate_and_score_completions(inputs)
        return self.scored


class PrescribedRLOOTrainer(_Prescribed, RLOOTrainer):
    """RLOO on a case."""

    def _generate_single_turn(self, prompt_ids: list, images: None, multimodal_fields: dict) -> list[list[int]]:
        return [list(ids) for ids in self.case.completions]


class PrescribedGRPOTrainer(_Prescribed, GRPOTrainer):
    """GRPO on a case."""

    def _generate_single_turn(self, *_: Any) -> tuple[list[list[int]], None]:
        return [list(ids) for ids in self.case.completions], None


TRAINERS = {"rloo": (PrescribedRLOOTrainer, RLOOConfig), "grpo": (PrescribedGRPOTrainer, GRPOConfig)}


def run_trl(case: TrlGroupsCase) -> TrlGroupsResult:
    """Run `num_iterations` optimizer steps of TRL on the batch of a case, on the CPU in float32."""
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = _trainer(case, output_dir)
        before = _parameters(trainer.model)
        with patch(f"trl.trainer.{case.algorithm}_trainer.shuffle_sequence_dict", lambda batch: batch):
            trainer.train()
    return _result(trainer, before)


def _trainer(case: TrlGroupsCase, output_dir: str) -> Any:
    """Build the trainer with the reference of the case; TRL itself would take the policy for the reference."""
    args = _config(case, output_dir)
    trainer = TRAINERS[case.algorithm][0](
        model=str(case.policy_folder),
        reward_funcs=[_reward_function(case)],
        args=args,
        train_dataset=_groups(case, args.num_generations),
        processing_class=case.tokenizer,
    )
    trainer.case = case
    trainer.remove_callback(PrinterCallback)
    if trainer.ref_model is not None:
        reference = AutoModelForCausalLM.from_pretrained(
            case.reference_folder, dtype=torch.float32, **no_dropout(case.reference_folder)
        )
        trainer.ref_model = trainer.accelerator.prepare_model(reference.eval(), evaluation_mode=True)
    return trainer


def _config(case: TrlGroupsCase, output_dir: str) -> Any:
    """One generation batch of all rows, reused in every step, in plain float32 without dropout."""
    fixed = {
        "output_dir": output_dir,
        "per_device_train_batch_size": len(case.prompts),
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "max_steps": case.options.get("num_iterations", 1),
        "shuffle_dataset": False,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "model_init_kwargs": no_dropout(case.policy_folder),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    return TRAINERS[case.algorithm][1](**fixed, **case.options)


def _groups(case: TrlGroupsCase, num_generations: int) -> Dataset:
    """One row per group, which TRL repeats `num_generations` times."""
    groups = [case.prompts[i : i + num_generations] for i in range(0, len(case.prompts), num_generations)]
    assert all(a == b for group in groups for a, b in pairwise(group)), "unequal prompts in a group"
    return Dataset.from_dict({"prompt": [str(index) for index in range(len(groups))]})


def _reward_function(case: TrlGroupsCase) -> Any:
    """Return the prescribed scores, whatever was said."""

    def prescribed(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
        assert [list(ids) for ids in completion_ids] == case.completions
        return [float(score) for score in case.scores]

    return prescribed


def _parameters(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}


def _result(trainer: Any, before: dict[str, np.ndarray]) -> TrlGroupsResult:
    arrays = {name: trainer.scored[name].numpy() for name in ("advantages", "completion_mask")}
    old_logps = trainer.scored.get("old_logps")
    steps = [logs for logs in trainer.state.log_history if "loss" in logs]
    return TrlGroupsResult(
        **arrays,
        old_logps=None if old_logps is None else old_logps.numpy(),
        policy_before=before,
        policy_after=_parameters(trainer.model),
        losses=[logs["loss"] for logs in steps],
        grad_norms=[logs["grad_norm"] for logs in steps],
        metrics=[{name: value for name, value in logs.items() if name not in TRAINER_LOGS} for logs in steps],
    )
