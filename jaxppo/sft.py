"""Supervised fine-tuning on reference plans: `python -m jaxppo.sft`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `checkpoints/`, `policy/` (Hugging Face), with LoRA also
`adapters/policy/` (PEFT), `eval.json` and `report.html`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo import data, hf, models
from jaxppo.config import SFTConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError
from jaxppo.evaluate.evaluator import eval_metrics, make_evaluator
from jaxppo.evaluate.printing import print_results
from jaxppo.hf import hub
from jaxppo.hf.export import base_of, models_meta, write_models, write_tokenizer
from jaxppo.nn import ModelConfig, family_of, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import processes, stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets.stream_ahead import StreamAhead
from jaxppo.profiling import aot
from jaxppo.profiling.aim import show
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.rl import ops, optimizer
from jaxppo.rl.describe import print_memory
from jaxppo.rl.start import adapter_of, start_adapter
from jaxppo.rl.supervised import SFT, check_finite
from jaxppo.run import activity, cli
from jaxppo.run.console import Console
from jaxppo.run.folder import begin
from jaxppo.run.loop import Steps, TrainingLoop
from jaxppo.types import Params

Learned = data.SupervisedData | data.FreshData


class Start(NamedTuple):
    """What training starts from."""

    model: ModelConfig
    params: Params
    tokenizer: Any
    loaded: hf.Loaded | None  # None: drawn at random
    adapter: LoraConfig | None = None  # shape of the adapter that is trained; None: all weights are
    adapter_params: Params | None = None  # of an adapter to start from


def start_model(config: SFTConfig, placement: hf.Placement | None = None) -> Start:
    """Configuration, parameters and tokenizer to start from: a folder's, or fresh ones.

    Args:
        config: of the command.
        placement: see `hf.load_model`; fresh parameters lie on the first device.
    """
    if config.model_path is not None:
        policy = hf.load_policy(config.model_path, placement, shapes_only=config.run.target is not None)
        return Start(*policy, *_adapter(config, policy.config, policy.params))
    if config.tokenizer_path is None:
        tokenizer = data.word_tokenizer(data.words_of_dataset(config.data))
    else:
        tokenizer = hf.load_padding_tokenizer(hf.find_model(config.tokenizer_path, weights=False))
    more = config.model_kwargs or {}
    tied = {name: more[name] for name in ("tie_word_embeddings",) if name in more}
    model = family_of(config.model_type).fresh(
        model_type=config.model_type,
        vocab_size=data.bucket(len(tokenizer)),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=more.get("num_key_value_heads", config.num_attention_heads),
        rotary_pct=more.get("rotary_pct", 1.0),
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **tied,
    )
    return Start(model, models.init_params(model, ops.purpose_key(config.run.seed, ops.Purpose.INIT)), tokenizer, None)


def _adapter(config: SFTConfig, model: ModelConfig, base: Params) -> tuple[LoraConfig | None, Params | None]:
    """Return the shape of the adapter that is trained, and the one to start from; None where there is none."""
    if not config.peft.use_peft:
        return None, None
    shape, adapter = start_adapter(config.peft, model, base)
    if shape is None:
        shape = adapter_of(config.peft)
        lora.check_targets(model, shape)
    return shape, adapter


def _plan(start: Start, supervised: Learned, config: SFTConfig, devices: list[Any]) -> aot.Plan:
    """Plan the optimizer step on the longest rows, for devices that are not there."""
    parallel = DataParallel(config.run.parallel, devices, config.run.mesh)
    config.check_devices(parallel.row_shards)
    model = models.computing_in(start.model, config.dtype, config.run.attention)
    parallel.check_model(model)
    learner = SFT(config, model, parallel, supervised.length_gaps, start.adapter)
    state = aot.placed(parallel, jax.eval_shape(learner.init_state, start.params))
    batch = jax.eval_shape(learner.weighted, supervised.longest_batch())
    step = aot.Program(learner.program, (state,), (aot.placed(parallel, batch, 2),))
    return aot.Plan(parallel, {"update": [step]}, aot.shard_bytes(state))


class LearnedRows(NamedTuple):
    """The rows to learn from."""

    rows: Learned
    what: str  # they are out of
    streamed: data.StepRows | None = None  # where they are read as the run goes on


def _learned(
    config: SFTConfig, model: ModelConfig, tokenizer: Any, template: data.ChatTemplate, console: Console
) -> LearnedRows:
    """Return the rows to learn from."""
    size, seed, longest = config.batch_size, config.run.seed, config.data.longest_prompt
    assistant_only = config.assistant_only_loss
    if assistant_only and not template.templated:
        raise ConfigError("assistant_only_loss: expected False without a chat template, got True")

    def fresh(rows_of: Callable[[int], Sequence[data.Row]]) -> data.FreshData:
        def encoded(step: int) -> list[data.EncodedRow]:
            return data.encode_rows(tokenizer, rows_of(step), longest, template, assistant_only=assistant_only)

        return data.FreshData(encoded, tokenizer.pad_token_id, model.max_length)

    if config.data.stream_domains is not None and config.data.train_split == "train":
        stream = data.stream_of(config.data, "train", config.augmented)
        return LearnedRows(fresh(StreamAhead(stream, size, config.stream_workers).batch), "an endless stream")
    split, judges = config.data.train_split, "builtin" if config.reward.judges_plans else None
    columns = {"prompt": str, "completion": str}
    limit = None if config.max_length is None else data.RowLimit(config.max_length, config.overlong)
    if config.stream.streaming:
        stream = data.open_stream(config.data, config.stream, seed, judges, columns)
        select = data.select_supervised(tokenizer, config.data, template, limit, assistant_only=assistant_only)
        streamed = data.StepRows(stream, size, select, console.warn)
        rows = data.FreshData(streamed, tokenizer.pad_token_id, model.max_length, data.padded_size)
        return LearnedRows(rows, f"{stream.name}, as they are read", streamed)
    rows = data.load_split(config.data, split, judges, columns)
    data.check_same(config.data.dataset, split, rows)
    count = len(rows)
    rows = data.without_overlong(tokenizer, rows, config.data, template)
    data.tell_left_out(console.print, config.data, {split: count - len(rows)})
    if config.augmented:
        numbered = config.data.numbers_objects
        renamed = data.renamed_in_every_epoch(rows, size, seed, config.augmented, numbered=numbered)
        return LearnedRows(fresh(renamed), f"{len(rows)}, each drawn anew in every epoch")
    if limit is not None:
        longest = None  # a long prompt is part of a long row
    fixed = data.SupervisedData(rows, tokenizer, size, seed, longest, template, limit, assistant_only=assistant_only)
    if fixed.overlong:
        console.warn(
            f"{fixed.overlong} of {len(rows)} rows are longer than max_length {config.max_length} tokens: "
            f"{fixed.overlong - fixed.left_out} cut, {fixed.left_out} left out"
        )
    return LearnedRows(fixed, str(len(fixed)))


def sft(config: SFTConfig) -> Path:
    """Train a model on reference plans; returns the run folder."""
    run = begin("sft", config)
    if run.is_finished():
        return run.folder
    console, folder = run.console, run.folder
    parallel = run.parallel if config.run.target is None else DataParallel()  # programs of a target are its own
    trackers = run.trackers
    registry.check(config.reward)
    endless = config.data.stream_domains is not None and config.data.train_split == "train"
    data.make_splits(config.data, [*([] if endless else [config.data.train_split]), *config.data.eval_splits])
    start = start_model(config, parallel.placement)
    if start.loaded is not None:
        console.print(f"model from {start.loaded.describe()}")
    model, tokenizer = models.computing_in(start.model, config.dtype, config.run.attention), start.tokenizer
    parallel.check_model(model)
    template = data.make_chat_template(tokenizer, config.data)
    console.print(f"prompts and completions: {template.describe()}")
    supervised, what, streamed = _learned(config, model, tokenizer, template, console)
    what_is_long = "longest prompt and completion of train_split, which max_length limits"
    models.check_length(model, supervised.longest, what_is_long, tokenizer.model_max_length)
    if config.run.target is not None:
        show(console, config, partial(_plan, start, supervised))
        return folder
    end_ids = model.ends_beside(template.end_id)
    load_model = registry.reward_model_loader(
        model, start.params, tokenizer, parallel.of_process(), end_ids, config.data.system_prompt
    )
    context = registry.Context(load_model=load_model)
    rewards = registry.make_rewards(config.reward, context)
    evaluator = make_evaluator(config, model, tokenizer, parallel, rewards)
    loop = config.with_best_metric().loop
    loop.check_evaluated(evaluator.metric_names)
    data.tell_left_out(console.print, config.data, evaluator.left_out)
    parameters = sum(p.size for p in jax.tree.leaves(start.params))
    console.print(
        f"SFT: {config.num_updates} steps of {config.batch_size} rows out of {what}, {parameters:,} parameters"
        f"{'' if start.adapter is None else f' under adapters of rank {start.adapter.r}'}, into {folder}"
    )
    learner = SFT(config, model, parallel, supervised.length_gaps, start.adapter)
    print_memory(console, learner.budget(supervised, evaluator.memory), parallel.local_devices)
    read = None if start.loaded is None else parameters
    use_peft = config.peft.use_peft
    for warning in optimizer.warnings(config.optimizer, config.num_updates, read, supervised=True, use_peft=use_peft):
        console.warn(warning)
    if config.run.dry_run:
        return folder
    base = base_of(config.model_path, start.loaded, model, "lm", is_frozen=use_peft)
    texts = template.describe()
    meta = run.meta(config, models_meta(base, None, start.adapter, end_ids, config.data.dataset, texts))
    params = start.params
    if registry.shares_policy(config.reward):  # of these weights a step takes over the memory
        params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
    with activity.shown("placing the model"):
        state = parallel.put(learner.init_state(params, start.adapter_params))
    steps = Steps(
        total=config.num_updates,
        step=learner.step(supervised),
        evaluate=lambda state: eval_metrics(evaluator(learner.policy(state), fixed_rows_only=True)),
        meta=meta,
        title="SFT",
        header=f"SFT of {config.model_path or 'a fresh model'} on {config.data.dataset}, into {folder}",
        watch=check_finite,
        rows=streamed,
    )
    with hub.pushed(run), run.claimed(), reported(folder, console), trackers:
        if processes.is_first():
            write_tokenizer(folder, tokenizer)
        state, last = TrainingLoop(run, loop, steps, state).run()
        if streamed is not None:
            console.print(streamed.describe())
        results = evaluator(learner.policy(state))
        trackers.log(config.num_updates, eval_metrics(results))
        params, frozen = stacks.unstacked(parallel.to_host((state.params, state.frozen)))
        if processes.is_first():
            write_models(folder, last, params, frozen, tokenizer, {"after": results})
        run.write_evals(results)
        print_results(console, results)
        console.print(f"model in {folder / 'policy'}")
    return folder


if __name__ == "__main__":
    cli.main(lambda: sft(parse_cli(SFTConfig, "sft")))
