"""The programs of an update as shapes, to be compiled for absent devices (`--target`)."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxppo.profiling.aot import Program, placed
from jaxppo.rl import ops, padding
from jaxppo.rl.learner import Learner
from jaxppo.types import Params, PromptBatch, Rollout, TrainState


def of_update(
    learner: Learner, state: TrainState, reference: Params | None, prompts: PromptBatch
) -> dict[str, list[Program]]:
    """Return what an update runs on its devices, by stage, for the longest sequences; all of it shapes.

    Args:
        learner: its programs.
        state: as from `init_state`.
        reference: as from `reference`.
        prompts: of one update.
    """
    config = learner.config
    place = partial(placed, learner.parallel)
    response_length = config.sampling.response_length
    prompt_length = prompts.prompt_ids.shape[1]

    def rows(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((config.batch_size, *shape), dtype)

    # Places come with the shapes, or the compiler would plan whole copies on every device.
    state = place(state)
    reference = place(reference)
    params = place(jax.eval_shape(learner.models_of, state))
    rollout = Rollout(
        completion_ids=rows(response_length),
        completion_mask=rows(response_length, dtype=bool),
        logprobs=rows(response_length, dtype=jnp.float32),
        ended=rows(dtype=bool),
    )
    longest = prompt_length + response_length
    length = padding.padded_length(learner.trained_models, longest, longest)
    sequences = jax.eval_shape(partial(learner.pack_program, length=length), prompts, rollout)
    # Each stage gets the shapes that the one before it gives, as in a real update.
    outputs = jax.eval_shape(learner.score, state, reference, sequences, rollout)
    scores = rows(dtype=jnp.float32)
    _, batch, _ = jax.eval_shape(
        learner.trajectories_program, state.controls, outputs, rollout, sequences, scores
    )
    key = jax.eval_shape(lambda: ops.purpose_key(config.run.seed, ops.Purpose.MINI_BATCHES, 0))
    mini_batches = jax.eval_shape(learner.mini_batches_program, batch, key)
    mini_batches = place(mini_batches, 2)
    sequences = place(sequences, 0)
    scoring = []
    if learner.has_value_model:
        scoring.append(Program(learner.values_program, (params,), (sequences,)))
    policy = place(jax.eval_shape(learner.scored_policy, state, reference))
    if config.scores_policy:
        scoring.append(Program(learner.logprobs_program, (policy,), (sequences,)))
    if reference is not None:
        scoring.append(Program(learner.logprobs_program, (reference,), (sequences,)))
        if config.rl.has_full_kl:
            models = {"policy": policy, "reference": reference}
            scoring.append(Program(learner.full_kl_program, (models,), (sequences,)))
    # As many prompts as one call samples: an update that does not fit at once takes several calls.
    parts = learner.sampling_parts(prompt_length)
    uniforms = rows(response_length, dtype=jnp.float32)

    def part_of(x: Any) -> Any:
        count, *sizes = x.shape
        return x.update(shape=(count // parts, *sizes))

    lengths = None if config.sampling.output_min_length is None else rows()
    sampling_inputs = jax.tree.map(part_of, place((prompts, uniforms, lengths), 0))
    sampling = Program(learner.sample_program, (params["policy"],), sampling_inputs)
    trained = state._replace(frozen=None)
    learning = Program(learner.update_program, (trained, state.frozen), (mini_batches,))
    stages = {"generate": [sampling], "score": scoring, "update": [learning]}
    return {name: programs for name, programs in stages.items() if programs}
