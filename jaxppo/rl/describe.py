"""Describe a run before it begins: its size, the memory it will take, settings that rarely do good."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxppo.parallel import platform
from jaxppo.profiling import aot, memory, peak_memory, sizes
from jaxppo.rl import optimizer, programs
from jaxppo.rl.learner import Learner
from jaxppo.rl.start import Start
from jaxppo.run.console import Console
from jaxppo.run.folder import Run
from jaxppo.types import PromptBatch


def print_plan(
    run: Run,
    learner: Learner,
    start: Start,
    prompts: int,
    prompt_length: int,
    evaluated: tuple[int, int] | None = None,
) -> None:
    """Print what a run will do, and warn of settings that rarely do what was meant.

    Args:
        run: its view and folder.
        learner: its programs and settings.
        start: parameters, or their shapes.
        prompts: rows of the data set.
        prompt_length: tokens of the longest prompt.
        evaluated: see `memory.budget`.
    """
    config = learner.config
    rl = config.rl
    parallel = learner.parallel
    console = run.console
    parameters = sum(p.size for p in jax.tree.leaves(start.policy))
    steps = config.num_updates * rl.num_ppo_epochs * rl.num_mini_batches
    tokens = prompt_length + config.sampling.response_length
    generations = f" ({config.num_prompts} prompts x {rl.group_size})" if rl.group_size > 1 else ""
    accumulated = learner.micro_batches(tokens)
    micro = f", {accumulated} micro-batches each" if accumulated > 1 else ""
    chosen = rl.gradient_accumulation_steps is None and platform.current().name != "cpu"
    if accumulated > 1 and chosen and learner.activation_budget is not None:
        micro += f" to take at most {memory.MOST_OF_DEVICE:.0%} of a device"
    old = f"{config.logprobs}, one step off-policy" if rl.async_rollouts else config.logprobs
    console.print(
        f"run: {rl.algorithm.upper()} on {config.data.dataset}: {config.num_updates} updates of {config.batch_size} "
        f"completions{generations} = {config.num_updates * config.batch_size} episodes, "
        f"{config.num_updates * config.num_prompts / prompts:.2f} passes over {prompts} prompts\n"
        f"learning: {steps} optimizer steps ({rl.num_ppo_epochs} epochs x {rl.num_mini_batches} mini-batches of "
        f"{config.mini_batch_size} completions per update{micro}), old log-probabilities by {old}\n"
        f"size: at most {config.batch_size * tokens:,} tokens per update, {parameters:,} parameters in {config.dtype}, "
        f"{parallel.describe()}\n"
        f"folder: {run.folder}, trackers: {', '.join(config.loop.report_to)}"
    )
    if memory.decodes_split(learner.model, start.policy, parallel.sizes):
        console.print(
            "sampling: weights stay split over fsdp, and tokens travel to them, as whole they take too much"
        )
    budget = budget_of(learner, prompt_length, evaluated)
    print_memory(console, budget, is_absent=config.run.target is not None)
    if config.sampling.truncates and config.logprobs == "sampler":
        console.warn(
            "top_k, top_p, min_p and repetition_penalty sample from another distribution than the policy's: its "
            "log-probabilities are kept, so the KL estimates are biased upwards and the first ratio is not 1 (with "
            "`logprobs: recompute` in a file it is)"
        )
    elif config.sampling.truncates:
        console.warn(
            "top_k, top_p, min_p and repetition_penalty sample from another distribution than the policy's, whose "
            "log-probabilities are recomputed: the KL estimates are biased (without these settings they are right)"
        )
    rates = config.optimizer
    if not learner.has_value_model:
        rates = dataclasses.replace(rates, value_learning_rate=None)  # nothing learns at that rate
    for warning in optimizer.warnings(
        rates, config.num_updates, parameters, supervised=False, use_peft=config.peft.use_peft
    ):
        console.warn(warning)
    if not rl.has_reference:
        console.print("kl_coef 0: no reference, and no KL is measured")


def print_memory(console: Console, budget: memory.Budget, is_absent: bool = False) -> None:
    """Print what a run will take on each device, and warn where present devices have less."""
    console.print(budget.describe())
    # Of a target its compiler says more.
    warning = None if is_absent else peak_memory.excess(budget)
    if warning is not None:
        console.warn(warning)


def budget_of(
    learner: Learner, prompt_length: int, evaluated: tuple[int, int] | None = None
) -> memory.Budget:
    """Estimate the memory that a run takes on each device.

    Args:
        learner: its programs and settings.
        prompt_length: tokens of a prompt, padding included.
        evaluated: see `memory.budget`.
    """
    config = learner.config
    row_shards = learner.parallel.row_shards
    length = prompt_length + config.sampling.response_length
    return memory.budget(
        config,
        learner.shapes,
        prompt_length,
        row_shards,
        sampled=config.batch_size // row_shards // learner.sampling_parts(prompt_length),
        scored=learner.scored_rows(length),
        parts=learner.micro_batches(length),
        evaluated=evaluated,
    )


def plan_of(learner: Learner, start: Start, prompt_length: int) -> aot.Plan:
    """Plan the programs of an update for absent devices.

    Args:
        learner: its programs and settings.
        start: shapes of the parameters.
        prompt_length: tokens of a prompt, padding included.
    """
    config = learner.config
    state = jax.eval_shape(learner.init_state, *start)
    reference = jax.eval_shape(learner.reference, state, start.policy)
    prompts = [
        jax.ShapeDtypeStruct((config.num_prompts, prompt_length), dtype)
        for dtype in (jnp.int32, bool)
    ]
    stages = programs.of_update(learner, state, reference, PromptBatch(*prompts))  # type: ignore[arg-type]
    return aot.Plan(
        learner.parallel,
        stages,
        sizes.tree_bytes(learner.shapes.resident),
        budget=budget_of(learner, prompt_length).by_program(),
        trips=config.sampling.response_length - 1,
    )
