"""Supervised fine-tuning on reference plans: `python -m jaxppo.sft`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `checkpoints/`, `policy/` (Hugging Face) and `eval.json`.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxppo import cli, data, hf, models, ops, rollout, run_folder, update
from jaxppo.checkpoint import Checkpoints
from jaxppo.config import SFTConfig, flatten, parse_cli
from jaxppo.evaluate import Evaluator, summary_line
from jaxppo.metrics import Console, JsonlLog
from jaxppo.models import ModelConfig
from jaxppo.parallel import DATA, DataParallel
from jaxppo.types import Array, Params, Sequences, TrainState


def sft_loss(
    params: Params, batch: Sequences, *, model: ModelConfig, axis_name: str | None = None
) -> tuple[Array, update.Stats]:
    """Mean negative log-likelihood of completion tokens, end of sequence included, over all devices; in nats."""
    mask = batch.completion_mask
    logprobs, entropy = rollout.completion_logprobs(params["policy"], batch, model=model, temperature=1.0)
    loss = -ops.masked_mean(logprobs, mask, axis_name)
    return loss, {"loss": loss, "entropy": ops.masked_mean(entropy, mask, axis_name)}


def start_model(config: SFTConfig) -> tuple[ModelConfig, Params, Any]:
    """Configuration, parameters and tokenizer to start from: a folder's, or fresh ones for the built-in domain."""
    if config.model_path is not None:
        folder = data.model_folder(config.model_path)
        return *hf.load_pretrained(folder), hf.load_tokenizer(folder)
    tokenizer = data.word_tokenizer()
    model = ModelConfig(
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
    return model, models.init_params(model, ops.purpose_key(config.run.seed, ops.Purpose.INIT)), tokenizer


def make_step(config: SFTConfig, model: ModelConfig, parallel: DataParallel) -> Any:
    """The compiled optimizer step: (state, sequences) -> (state, stats)."""
    program = partial(
        update.update,
        loss=partial(sft_loss, model=model, axis_name=DATA),
        optimizer=update.make_optimizer(config.optimizer),
        rates=update.make_learning_rates(config.optimizer, config.num_updates),
        axis_name=DATA,
    )
    return parallel.map(program, row_axes=(None, 1), out_axes=(None, None), donate=(0,))


def sft(config: SFTConfig) -> Path:
    """Train a model on reference plans; returns the run folder."""
    console = Console(config.run.quiet)
    parallel = DataParallel(config.run.parallel)
    config.check_devices(parallel.num_devices)
    model, params, tokenizer = start_model(config)
    rows = data.load_split(config.data, config.data.train_split)
    supervised = data.SupervisedData(rows, tokenizer, config.batch_size, config.run.seed, config.data.max_prompt_length)
    folder = run_folder.default_folder("sft", config.run)
    console.print(
        f"SFT: {config.max_steps} steps of {config.batch_size} rows out of {len(rows)}, "
        f"{sum(p.size for p in jax.tree.leaves(params)):,} parameters, into {folder}"
    )
    if config.run.dry_run:
        return folder
    run_folder.claim(folder, config, config.run)
    if (folder / "eval.json").exists():
        console.print(f"{folder} is finished: nothing to resume")
        return folder
    checkpoints = Checkpoints(folder / "checkpoints", keep=config.run.save_total_limit)
    state = update.init_state({"policy": params}, update.make_optimizer(config.optimizer))
    state = parallel.put(checkpoints.restore(state) if checkpoints.latest is not None else state)
    state = _run_steps(
        config, folder, state, supervised, make_step(config, model, parallel), parallel, checkpoints, console
    )
    hf.save_pretrained(folder / "policy", model, jax.device_get(state.params["policy"]), tokenizer)
    evaluator = Evaluator(
        model, tokenizer, parallel, config.data, config.evaluation, config.response_length, config.run.seed
    )
    results = evaluator(state.params["policy"])
    run_folder.write_json(folder / "eval.json", results)
    for split, result in results.items():
        console.print(summary_line(split, result))
    console.print(f"model in {folder / 'policy'}")
    return folder


def _run_steps(
    config: SFTConfig,
    folder: Path,
    state: TrainState,
    supervised: data.SupervisedData,
    step_program: Any,
    parallel: DataParallel,
    checkpoints: Checkpoints,
    console: Console,
) -> TrainState:
    start = int(state.step)
    log = JsonlLog(folder / "metrics.jsonl")
    log.truncate_after(start)
    with log, console.progress(config.max_steps, "SFT", start) as progress:
        for step in range(start, config.max_steps):
            began = time.monotonic()
            batch = jax.tree.map(lambda x: x[None], supervised.batch(step))
            state, stats = step_program(state, parallel.put(batch, 1))
            log.append({"step": step + 1, **jax.device_get(stats), "time/step_s": time.monotonic() - began})
            progress.update(step + 1, loss=float(stats["loss"]), lr=float(stats["lr"]))
            if (step + 1) % config.run.save_steps == 0 or step + 1 == config.max_steps:
                checkpoints.save(step + 1, state, flatten(config))
    return state


if __name__ == "__main__":
    cli.main(lambda: sft(parse_cli(SFTConfig, "sft")))
