"""The programs of an update as shapes: what they are, to be compiled for devices that are not there, and their room."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxppo import models
from jaxppo.parallel import stacks
from jaxppo.profiling import memory
from jaxppo.profiling.aot import Program, placed
from jaxppo.rl import ops
from jaxppo.types import Params, PromptBatch, Rollout, TrainState

if TYPE_CHECKING:
    from jaxppo.rl.ppo import PPO


def of_update(
    ppo: "PPO", state: TrainState, reference: Params | None, prompts: PromptBatch
) -> dict[str, list[Program]]:
    """Return what an update runs on its devices, by stage, for the longest sequences; all of it shapes.

    Args:
        ppo: its programs.
        state: as from `init_state`.
        reference: as from `reference`.
        prompts: of one update.
    """
    config, place = ppo.config, partial(placed, ppo.parallel)
    count, length = config.batch_size, config.sampling.response_length

    def rows(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((count, *shape), dtype)

    state, reference, params = place(state), place(reference), place(jax.eval_shape(ppo.models_of, state))
    drawn = Rollout(rows(length), rows(length, dtype=bool), rows(length, dtype=jnp.float32), rows(dtype=bool))
    packed = jax.eval_shape(partial(ppo._pack, length=prompts.prompt_ids.shape[1] + length), prompts, drawn)
    scored = jax.eval_shape(ppo.score, state, reference, packed, drawn)
    scores = rows(dtype=jnp.float32)
    _, batch, _ = jax.eval_shape(ppo._trajectories, state.controls, scored, drawn, packed, scores, None)
    key = jax.eval_shape(lambda: ops.purpose_key(config.run.seed, ops.Purpose.MINI_BATCHES, 0))
    learned = place(jax.eval_shape(ppo._mini_batches, batch, key), 2)
    prompts, packed = place(prompts, 0), place(packed, 0)
    scoring = [Program(ppo._values, (params,), (packed,))] if ppo.has_value_model else []
    policy = place(jax.eval_shape(ppo.scored_policy, state, reference))
    if config.scores_policy:
        scoring.append(Program(ppo._logprobs, (policy,), (packed,)))
    if reference is not None:
        scoring.append(Program(ppo._logprobs, (reference,), (packed,)))
        if config.rl.kl_estimator == "full":
            both = {"policy": policy, "reference": reference}
            scoring.append(Program(ppo._full_kl, (both,), (packed,)))
    drawing = place((rows(length, dtype=jnp.float32), rows()), 0)
    parts = ppo.sampling_parts(prompts.prompt_ids.shape[1])
    prompts, drawing = jax.tree.map(lambda x: x.update(shape=(x.shape[0] // parts, *x.shape[1:])), (prompts, drawing))
    stages = {
        "generate": [Program(ppo._generate, (params["policy"],), (prompts, *drawing))],
        "score": scoring,
        "update": [Program(ppo._update, (state._replace(frozen=None), state.frozen), (learned,))],
    }
    return {name: programs for name, programs in stages.items() if programs}


def held_by(ppo: "PPO", state: TrainState, policy: Params, value: Params | None) -> dict[str, Any]:
    """Return what is on the devices throughout a run, by name: trees of shapes.

    Args:
        ppo: its programs and settings.
        state: shapes of what `init_state` makes of these models.
        policy: shapes of the policy.
        value: shapes of a value model of its own; None: it has the policy's trunk, or a copy of it.
    """
    held = {f"{name} to train": tree for name, tree in state.params.items()} | {"optimizer": state.opt_state}
    if state.frozen is not None:  # one set of arrays may lie under several adapters
        held["frozen base"] = state.frozen["policy"]
        if ppo.config.peft.lora_path is not None and ppo.config.rl.kl_coef > 0:
            held["adapter of the reference"] = state.params["policy"]
        if value is not None and "trunk" in value:
            held["frozen value base"] = state.frozen["value"]
    elif ppo.config.rl.kl_coef > 0:
        held["reference"] = jax.eval_shape(ppo.reference, state, policy)
    return held


def room_to_learn(ppo: "PPO") -> int | None:
    """Return the bytes that a device has for what a gradient keeps of its rows; None where its memory is not known."""
    if memory.device_bytes() is None:
        return None
    return memory.room_to_learn(ppo.learned, *ppo.shapes, ppo.parallel.sizes)


def sampled_rows(ppo: "PPO", prompt_length: int) -> int | None:
    """Return how many rows a device samples at once, as far as memory allows; None where its memory is not known."""
    if memory.device_bytes() is None:
        return None
    held, _, weights = ppo.shapes
    response, merged = ppo.config.sampling.response_length, ppo.config.peft.use_peft
    sizes = ppo.parallel.sizes
    return memory.sampled_rows(ppo.model, held, weights["policy"], prompt_length, response, sizes, merged)


def shapes_of(ppo: "PPO") -> tuple[Any, Any, Any]:
    """Return what is on a device throughout, what of it is trained, and whole models: trees of shapes."""
    policy = jax.eval_shape(lambda: models.init_params(ppo.model, jax.random.key(0)))
    value = jax.eval_shape(lambda: models.init_params(ppo.value_model, jax.random.key(0), "score"))
    start = policy, None if ppo.config.value_model_path is None else value
    state = jax.eval_shape(ppo.init_state, *start)
    held, trained = ppo.parallel.shards(held_by(ppo, state, *start)), ppo.parallel.shards(state.params)
    weights = jax.eval_shape(lambda state: stacks.unstacked(ppo.models_of(state)), state)
    return held, trained, weights
