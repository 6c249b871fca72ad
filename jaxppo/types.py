"""The arrays that travel between the stages of an update, and the letters of their shapes.

B rows (completions) of a batch, over all devices    G prompts of a batch (B, or B / num_generations)
N rows of the training data
P prompt tokens, left-padded    C completion tokens    T prompt and completion together, right-padded
V vocabulary    D hidden size    H attention heads    K size of a head    L layers
S optimizer steps of an update    M micro-batches of an optimizer step

Masks are True at real tokens and come from lengths, never from comparing ids with the pad id, so pad = eos is safe.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

Array = jax.Array
Axes: TypeAlias = str | tuple[str, ...] | None
"""Mapped device axes that rows are split over, inside of a per-device program; None outside of one."""
Params = dict[str, Any]
Stats = dict[str, Array]
"""Named numbers, [] each."""

# --- what the programs of an update take and give


class PromptBatch(NamedTuple):
    """Prompts, left-padded: the last token of every prompt sits in the last column."""

    prompt_ids: Array  # [G, P] int32
    prompt_mask: Array  # [G, P] bool


class Rollout(NamedTuple):
    """Sampled completions. The mask covers every sampled token up to and including the stop token."""

    completion_ids: Array  # [B, C] int32, pad id outside the mask
    completion_mask: Array  # [B, C] bool
    # [B, C] fp32, of the distribution sampled from; 0 outside the mask; None: unknown
    logprobs: Array | None
    ended: Array  # [B] bool, True where the stop token was sampled


class Sequences(NamedTuple):
    """Prompt and completion packed together and right-padded, as the scoring and update programs read them."""

    input_ids: Array  # [B, T] int32
    prompt_lengths: Array  # [B] int32
    completion_ids: Array  # [B, C] int32
    completion_mask: Array  # [B, C] bool
    # [B, C] bool, tokens with a share in a supervised loss; None: the completion mask
    loss_mask: Array | None = None


class ModelOutputs(NamedTuple):
    """What policy, reference and value model compute of completions; 0 outside the mask, but for the values."""

    logprobs: Array  # [B, C] fp32, of the policy that sampled
    ref_logprobs: Array | None  # [B, C] fp32; None: no reference
    values: Array | None  # [B, C] fp32, value of the state before each token; None: no value model
    # [B, C] fp32, exact KL to the reference; None: estimate it from the log-probabilities
    full_kl: Array | None = None
    entropy: Array | None = None  # [B, C] fp32, of the policy at each token; None: not needed


class Trajectories(NamedTuple):
    """What an update learns from; 0 outside the masks. RLOO has an advantage per completion; only PPO has values."""

    sequences: Sequences
    logprobs: Array  # [B, C] fp32, old
    rewards: Array  # [B, C] fp32, or [B] (without values)
    advantages: Array  # [B, C] fp32, or [B] (RLOO)
    values: Array | None = None  # [B, C] fp32, old
    returns: Array | None = None  # [B, C] fp32
    value_mask: Array | None = None  # [B, C] bool, where values are trained
    ref_logprobs: Array | None = None  # [B, C] fp32, of the reference; None: no KL in the loss
    # [B] bool, completions whose likelihood is raised; None: no such term
    positive: Array | None = None


class Weights(NamedTuple):
    """Weights of entries in the means over a mini-batch: 0 where an entry does not count.

    The sum over a mini-batch is 1, or 0 where no entry counts; that of `policy` depends on `loss_type`.
    """

    tokens: Array  # [B, C] fp32, real tokens
    policy: Array  # as the advantages, [B, C] or [B]
    ratios: Array  # of the same shape, in the means of logged ratios
    values: Array | None = None  # [B, C] fp32
    positive: Array | None = None  # [B, C] fp32, tokens of positive completions


# --- a batch on its way through an update


@dataclass(slots=True, kw_only=True)
class Batch:
    """The prompts and completions of one update; each stage fills in its part, in the order of the fields."""

    # From the data set, on the host: `PromptData.batch`.
    prompts: PromptBatch  # numpy
    prompt_texts: list[str]  # [G]
    columns: dict[str, list[Any]]  # of the data set, [G] each
    # Sampled, and computed by the models, on the devices: `rl.batch_sources`.
    rollout: Rollout | None = None
    sequences: Sequences | None = None
    outputs: ModelOutputs | None = None
    began_s: float = 0.0  # moments are in seconds of `time.monotonic`
    sampled_s: float = 0.0
    # Set when the outputs are computed, which nothing waits for
    outputs_s: Future[float] | None = None
    completion_ids: np.ndarray | None = None  # [B, C] int32, those of the rollout on the host
    completion_mask: np.ndarray | None = None  # [B, C] bool
    # From the reward functions, on the host: `reward_functions.judge`.
    completions: list[str] = field(default_factory=list)  # [B] texts
    # [B]; None: the completion has no score
    scores: list[float | None] = field(default_factory=list)
    reward_metrics: dict[str, float] = field(default_factory=dict)
    reward_columns: dict[str, list[Any]] = field(default_factory=dict)  # of samples.jsonl, [B] each
    judged_s: float = 0.0

    def per_completion(self, copies: int) -> tuple[list[str], dict[str, list[Any]]]:
        """Return prompt texts and columns with every row repeated `copies` times in a row, once per completion."""

        def repeat(values: list[Any]) -> list[Any]:
            return [value for value in values for _ in range(copies)]

        return repeat(self.prompt_texts), {
            name: repeat(values) for name, values in self.columns.items()
        }


# --- what goes on from update to update


class ScoreMoments(NamedTuple):
    """Running moments of all scores so far, all [] fp32."""

    seen: Array  # how many
    mean: Array
    m2: Array  # sum of squared distances from the mean


class Controls(NamedTuple):
    """What adapts from update to update beside the models: the KL coefficient, running moments of scores."""

    kl_coef: Array  # [] fp32, in force
    moments: ScoreMoments
    # [] int32, updates in a row with a loss or gradient that was not finite, or without any score
    bad_updates: Array


class TrainState(NamedTuple):
    """What an update changes on the devices; on the host it is `Prefetched` alone."""

    params: Params  # {"policy": ...} and, unless there is no value model, {"value": ...}
    opt_state: Any
    step: Array  # [] int32, updates done
    controls: Controls | None = None  # None: supervised
    # Weights under adapters, by model as in `params`; never change, in no checkpoint
    frozen: Params | None = None


PREFETCHED = {"rollout": Rollout, "sequences": Sequences, "outputs": ModelOutputs}
"""What a checkpoint holds of a `Batch` that was sampled ahead, by field."""

Prefetched = dict[str, Any] | None
"""These fields of the next batch, where it was sampled before this update."""
