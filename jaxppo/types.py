"""The pytrees that travel between the stages of an update, and the letters of their shapes.

B rows (completions) of a batch, over all devices    P prompt tokens, left-padded    C completion tokens
T prompt and completion together, right-padded       V vocabulary                    D hidden size
H attention heads        K size of a head            L layers                        S optimizer steps of an update

Masks are True at real tokens and come from lengths, never from comparing ids with the pad id, so pad = eos is safe.
"""

from typing import Any, NamedTuple

import jax

Array = jax.Array
Params = dict[str, Any]


class PromptBatch(NamedTuple):
    """Prompts, left-padded: the last token of every prompt sits in the last column."""

    prompt_ids: Array  # [B, P] int32
    prompt_mask: Array  # [B, P] bool


class Rollout(NamedTuple):
    """Sampled completions. The mask covers every sampled token up to and including the end of sequence."""

    completion_ids: Array  # [B, C] int32, pad id outside the mask
    completion_mask: Array  # [B, C] bool
    logprobs: Array  # [B, C] fp32, of the distribution sampled from; 0 outside the mask
    ended: Array  # [B] bool, True where the end of sequence was sampled


class Sequences(NamedTuple):
    """Prompt and completion packed together and right-padded, as the scoring and update programs read them."""

    input_ids: Array  # [B, T] int32
    prompt_lengths: Array  # [B] int32
    completion_ids: Array  # [B, C] int32
    completion_mask: Array  # [B, C] bool


class Scored(NamedTuple):
    """What the models say about a rollout; everything is 0 outside the completion mask."""

    logprobs: Array  # [B, C] fp32, of the policy that sampled
    ref_logprobs: Array  # [B, C] fp32
    values: Array  # [B, C] fp32, value of the state before each token


class Trajectories(NamedTuple):
    """All an update needs. Everything but the ids is 0 outside the completion mask."""

    sequences: Sequences
    logprobs: Array  # [B, C] fp32, old
    values: Array  # [B, C] fp32, old
    advantages: Array  # [B, C] fp32, whitened
    returns: Array  # [B, C] fp32


class TrainState(NamedTuple):
    """Everything that an update changes."""

    params: Params  # {"policy": ..., "value": ...}
    opt_state: Any
    step: Array  # [] int32, updates done
