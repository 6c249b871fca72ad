"""Supervised fine-tuning on reference plans: `python -m jaxppo.sft`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `checkpoints/`, `policy/` (Hugging Face) and `eval.json`.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxppo import cli, data, hf, models, ops, optimizer, rollout, run_folder, update
from jaxppo.checkpoint import Checkpoints
from jaxppo.config import SFTConfig
from jaxppo.config_sources import flatten, parse_cli, plain_values
from jaxppo.console import Console
from jaxppo.errors import TrainingError
from jaxppo.evaluate import EVAL_FILE, Evaluator, eval_metrics, make_evaluator, print_results
from jaxppo.export import TOKENIZER_FOLDER, base_of, models_meta, write_models
from jaxppo.families import ModelConfig
from jaxppo.families.gpt_neox import GPTNeoXConfig
from jaxppo.logs import JsonlLog, read_metrics
from jaxppo.parallel import DATA, DataParallel
from jaxppo.preemption import Preemption
from jaxppo.types import Array, Params, Sequences, Stats, TrainState


def sft_loss(params: Params, batch: Sequences, weights: Array, *, model: ModelConfig) -> tuple[Array, Stats]:
    """This device's share of the mean negative log-likelihood of completion tokens, stop token included; in nats."""
    logprobs, entropy = rollout.completion_logprobs(params["policy"], batch, model=model, temperature=1.0)
    loss = -ops.weighted_sum(logprobs, weights)
    return loss, {"loss": loss, "entropy": ops.weighted_sum(entropy, weights)}


class Start(NamedTuple):
    """What training starts from."""

    model: ModelConfig
    params: Params
    tokenizer: Any
    loaded: hf.Loaded | None  # None: drawn at random


def start_model(config: SFTConfig) -> Start:
    """Configuration, parameters and tokenizer to start from: a folder's, or fresh ones for the built-in domain."""
    if config.model_path is not None:
        return Start(*hf.load_policy(config.model_path))
    tokenizer = data.word_tokenizer()
    model = GPTNeoXConfig(
        vocab_size=data.bucket(len(tokenizer)),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=4 * config.hidden_size,
        rotary_pct=config.rotary_pct,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Start(model, models.init_params(model, ops.purpose_key(config.run.seed, ops.Purpose.INIT)), tokenizer, None)


def make_step(config: SFTConfig, model: ModelConfig, parallel: DataParallel) -> Any:
    """The compiled optimizer step: (state, sequences) -> (state, stats)."""
    program = partial(
        update.update,
        loss=partial(sft_loss, model=model),
        optimizer=optimizer.make_optimizer(config.optimizer),
        rates=optimizer.make_learning_rates(config.optimizer, config.num_updates),
        axis_name=DATA,
    )
    return parallel.map(program, row_axes=(None, 2), out_axes=(None, None), donate=(0,))


def sft(config: SFTConfig) -> Path:
    """Train a model on reference plans; returns the run folder."""
    console = Console(config.run.quiet)
    folder = run_folder.default_folder("sft", config.run)
    if run_folder.check(folder, config, config.run) and (folder / EVAL_FILE).exists():
        console.print(f"{folder} is finished: nothing to resume")
        return folder
    parallel = DataParallel(config.run.parallel)
    config.check_devices(parallel.num_devices)
    start = start_model(config)
    if start.loaded is not None:
        console.print(f"model from {start.loaded.describe()}")
    model, tokenizer = models.computing_in(start.model, config.dtype), start.tokenizer
    rows = data.load_split(config.data, config.data.train_split)
    supervised = data.SupervisedData(rows, tokenizer, config.batch_size, config.run.seed, config.data.max_prompt_length)
    evaluator = make_evaluator(config, model, tokenizer, parallel)
    console.print(
        f"SFT: {config.num_updates} steps of {config.batch_size} rows out of {len(rows)}, "
        f"{sum(p.size for p in jax.tree.leaves(start.params)):,} parameters, into {folder}"
    )
    if config.run.dry_run:
        return folder
    run_folder.claim(folder, config, config.run)
    tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)
    base = base_of(config.model_path, start.loaded, model, "lm")
    meta = {
        "config": plain_values(flatten(config)),
        "models": models_meta(base, None, None, tokenizer.eos_token_id, config.data.dataset),
        "seed": config.run.seed,
    }
    state = update.init_state({"policy": start.params}, optimizer.make_optimizer(config.optimizer))
    step_program = make_step(config, model, parallel)
    state, last = _run_steps(config, folder, state, supervised, step_program, evaluator, meta, console)
    results = evaluator(state.params["policy"])
    write_models(folder, last, jax.device_get(state.params), None, tokenizer, {"after": results})
    run_folder.write_json(folder / EVAL_FILE, results)
    print_results(console, results)
    console.print(f"model in {folder / 'policy'}")
    return folder


def _run_steps(
    config: SFTConfig,
    folder: Path,
    state: TrainState,
    supervised: data.SupervisedData,
    step_program: Any,
    evaluator: Evaluator,
    meta: dict[str, Any],
    console: Console,
) -> tuple[TrainState, dict[str, Any]]:
    """All steps from the last checkpoint on; the state after them, and `meta` with the last step and its metrics.

    Raises:
        Preempted: the run was asked to stop, and the last finished step is saved.
    """
    loop, last, parallel = config.loop, config.num_updates, evaluator.parallel
    checkpoints = Checkpoints(
        folder / "checkpoints", loop.save_total_limit, loop.metric_for_best_model, loop.greater_is_better
    )
    state = parallel.put(state)
    if checkpoints.steps:
        state = checkpoints.restore(state, console.warn)
    start = int(state.step)
    with (
        Preemption(folder) as preemption,
        checkpoints,
        JsonlLog(folder / "metrics.jsonl") as log,
        console.progress(last, "SFT", start) as progress,
    ):
        log.truncate_after(start)
        for step in range(start, last):
            began = time.monotonic()
            batch = supervised.batch(step)
            weighted = (batch, ops.mean_weights(batch.completion_mask, (0, 1)))
            one_step = jax.tree.map(lambda x: x[None, None], weighted)
            state, stats = step_program(state, parallel.put(one_step, 2))
            record = {"step": step + 1, **jax.device_get(stats), "time/step_s": time.monotonic() - began}
            if loop.evaluates_at(step + 1, last):
                record |= eval_metrics(evaluator(state.params["policy"]))
            loop.check_record(record, last)
            log.append(record)
            if record["policy/nonfinite_steps"]:
                raise TrainingError(f"step {step + 1}: expected a finite loss and gradient, got NaN or infinity")
            progress.update(step + 1, loss=record["loss"], lr=record["lr"])
            if loop.saves_at(step + 1, last) or preemption.requested:
                checkpoints.save(step + 1, state, meta | {"step": step + 1}, record)
            preemption.check()
    return state, meta | {"step": last, "metrics": read_metrics(folder / "metrics.jsonl")[-1]}


if __name__ == "__main__":
    cli.main(lambda: sft(parse_cli(SFTConfig, "sft")))
