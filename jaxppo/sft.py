"""Supervised fine-tuning on reference plans, texts or chats: `python -m jaxppo.sft`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `checkpoints/`, `policy/` (Hugging Face), with LoRA also
`adapters/policy/` (PEFT), `eval.json` and `report.html`.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxppo import data, hf, models
from jaxppo.config import LoopConfig, SFTConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError, DataError
from jaxppo.evaluate.evaluator import (
    Evaluator,
    choose_fixed,
    eval_metrics,
    load_rows,
    make_evaluator,
)
from jaxppo.evaluate.held_out import HeldOut, ReferenceLoss, encode_held_out
from jaxppo.evaluate.printing import print_results
from jaxppo.hf import hub
from jaxppo.hf.export import base_of, models_meta, write_models, write_tokenizer
from jaxppo.nn import ModelConfig, family_of, lora
from jaxppo.nn.lora import LoraConfig
from jaxppo.parallel import processes, stacks
from jaxppo.parallel.devices import DataParallel
from jaxppo.planning.datasets.stream_ahead import StreamAhead
from jaxppo.report.run_page import reported
from jaxppo.reward_functions import registry
from jaxppo.rl import ops, optimizer
from jaxppo.rl.describe import print_memory
from jaxppo.rl.start import adapter_of, start_adapter
from jaxppo.rl.supervised import SFT, check_finite
from jaxppo.run import activity, cli
from jaxppo.run.console import Console
from jaxppo.run.folder import Run, begin
from jaxppo.run.loop import LoopSteps, TrainingLoop
from jaxppo.types import Params, TrainState

Learned = data.SupervisedData | data.FreshData


class SupervisedStart(NamedTuple):
    """The model that training starts from."""

    model: ModelConfig
    params: Params
    tokenizer: Any
    loaded: hf.LoadedModel | None  # None: drawn at random
    adapter: LoraConfig | None = None  # shape of the adapter that is trained; None: all weights are
    adapter_params: Params | None = None  # of an adapter to start from


def start_model(config: SFTConfig, placement: hf.Placement | None = None) -> SupervisedStart:
    """Configuration, parameters and tokenizer to start from: a folder's, or fresh ones.

    Args:
        config: of the command.
        placement: see `hf.load_model`; fresh parameters lie on the first device.
    """
    if config.model_path is not None:
        policy = hf.load_policy(config.model_path, placement)
        return SupervisedStart(*policy, *_adapter(config, policy.config, policy.params))
    if config.tokenizer_path is None:
        tokenizer = data.word_tokenizer(data.words_of_dataset(config.data))
    else:
        tokenizer = hf.load_padding_tokenizer(hf.find_model(config.tokenizer_path, weights=False))
    # A fresh model is a plain one: all of a head rotates.
    options = {"rotary_pct": 1.0} | (config.model_kwargs or {})
    model = family_of(config.model_type).new_config(
        model_type=config.model_type,
        vocab_size=data.bucket(len(tokenizer)),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    key = ops.purpose_key(config.run.seed, ops.Purpose.INIT)
    return SupervisedStart(model, models.init_params(model, key), tokenizer, None)


def _adapter(
    config: SFTConfig, model: ModelConfig, base: Params
) -> tuple[LoraConfig | None, Params | None]:
    """Return the shape of the adapter that is trained, and the one to start from; None where there is none."""
    if not config.peft.use_peft:
        return None, None
    shape, adapter = start_adapter(config.peft, model, base)
    if shape is None:
        shape = adapter_of(config.peft)
        lora.check_targets(model, shape)
    return shape, adapter


def _read_rows(config: SFTConfig) -> list[data.Row]:
    """Read the rows to learn from; none of an endless split, which is drawn step by step."""
    if config.is_endless:
        return []
    split = config.data.train_split
    validator = "builtin" if _judges_plans(config) else None
    rows = data.load_split(config.data, split, validator, _COLUMNS)
    data.check_same(config.data.dataset, split, rows)
    return rows


def _training_rows(
    config: SFTConfig,
    rows: list[data.Row],
    model: ModelConfig,
    template: data.ChatTemplate,
    console: Console,
) -> tuple[Learned, str]:
    """Return what is learned from, and what it is out of: rows without an end, made anew in every epoch, or fixed."""
    tokenizer = template.tokenizer
    if config.assistant_only_loss and not template.is_used:
        raise ConfigError("assistant_only_loss: expected False without a chat template, got True")
    if config.is_endless:
        stream = data.stream_of(config.data, "train", config.augmented)
        batches = StreamAhead(stream, config.batch_size).batch
        source = "an endless stream"
    else:
        split = config.data.train_split
        fitting = data.without_overlong(tokenizer, rows, config.prompt_data, template, split)
        num_left_out = len(rows) - len(fitting)
        data.report_left_out(console.print, config.data, {split: num_left_out})
        if not config.augmented:
            return _fixed_rows(config, fitting, model, template, console)
        numbered = config.data.numbers_objects
        batches = data.renamed_in_every_epoch(
            fitting, config.batch_size, config.run.seed, config.augmented, numbered=numbered
        )
        source = f"{len(fitting)}, each drawn anew in every epoch"

    def encoded(step: int) -> list[data.EncodedRow]:
        return data.encode_rows(
            tokenizer,
            batches(step),
            config.data.max_prompt_length,
            template,
            assistant_only=config.assistant_only_loss,
        )

    return data.FreshData(encoded, tokenizer.pad_token_id, model.max_length), source


_COLUMNS: dict[str, type] = {"prompt": str, "completion": str}
"""Columns that every row has, and what they hold."""


def _judges_plans(config: SFTConfig) -> bool:
    """Return whether the rows must be planning problems."""
    # `plan` alone is the default, and supervised steps need no reward: then the rows say what they are.
    if config.reward.reward_funcs == ("plan",):
        return data.holds_problems(config.data, config.data.train_split)
    return config.reward.judges_plans


def _scores_answers(config: SFTConfig) -> bool:
    """Return whether answers to held-out rows can be scored: not those to rows that `plan` alone is to reward."""
    return not config.reward.judges_plans or _judges_plans(config)


def fit_to_data(config: SFTConfig) -> tuple[SFTConfig, str | None]:
    """Leave out default evaluation splits that are missing, or whose texts cannot be read.

    Nothing is refused here, before the processes of a run have joined: the readers of the data do that.

    Returns:
        The settings, and a line that says what is not evaluated; None where all is.
    """
    named = config.data.names_eval_splits
    # A split that was named and is missing is a mistake, which `read_inputs` meets before it loads the model.
    if named and data.missing_splits(config.data, config.data.eval_splits):
        return config, None
    changed, line = data.without_missing_splits(config.data)
    lines = [] if line is None else [line]
    remaining = changed.eval_splits
    if not _scores_answers(config) and not named:
        unreadable = _unreadable_splits(config, remaining)
        remaining = tuple(split for split in remaining if split not in unreadable)
        lines += [f"eval_splits: {split} left out: {unreadable[split]}" for split in unreadable]
    if remaining and not _scores_answers(config):
        lines.append(
            f"{', '.join(remaining)}: evaluated by the loss alone, as the rows are no planning problems and no reward "
            "function is named; --reward_funcs module:function scores answers"
        )
    if remaining != config.data.eval_splits:
        changed = dataclasses.replace(config.data, eval_splits=remaining)
        config = dataclasses.replace(config, data=changed)
    return config, "\n".join(lines) or None


def _unreadable_splits(config: SFTConfig, splits: Sequence[str]) -> dict[str, str]:
    """Return which of the splits cannot be read, and why."""
    reasons = {}
    for split in splits:
        try:
            load_rows(dataclasses.replace(config.data, eval_splits=(split,)), config.reward, None)
        except DataError as error:
            reasons[split] = str(error)
    return reasons


def _fixed_rows(
    config: SFTConfig,
    rows: list[data.Row],
    model: ModelConfig,
    template: data.ChatTemplate,
    console: Console,
) -> tuple[data.SupervisedData, str]:
    made_for, name = models.made_for(model, template.tokenizer.model_max_length)
    max_prompt_length, limit = data.limits_of(config, made_for)
    supervised = data.SupervisedData(
        rows,
        template.tokenizer,
        config.batch_size,
        config.run.seed,
        max_prompt_length,
        template,
        limit,
        assistant_only=config.assistant_only_loss,
    )
    if supervised.overlong:
        limit_text = f"max_length {limit.max_length} tokens"
        if config.max_length is None:
            limit_text = (
                f"the {made_for} tokens that this {model.model_type} model was made for ({name}; --max_length says "
                "otherwise)"
            )
        console.warn(
            f"{supervised.overlong} of {len(rows)} rows are longer than {limit_text}: "
            f"{supervised.overlong - supervised.left_out} cut, {supervised.left_out} left out"
        )
    return supervised, str(len(supervised))


class SupervisedInputs(NamedTuple):
    """What a run reads before anything is made of it."""

    start: SupervisedStart
    model: ModelConfig  # as it computes
    template: data.ChatTemplate
    rows: Learned
    source: str  # what the rows are out of, for people


def read_inputs(config: SFTConfig, parallel: DataParallel, console: Console) -> SupervisedInputs:
    """Load model and rows, and check the settings that depend on them.

    Args:
        config: settings.
        parallel: devices that parameters are read into.
        console: for the lines that say what was read.
    """
    registry.check(config.reward)
    # An endless split is drawn step by step, and never made as a whole.
    train_splits = [] if config.is_endless else [config.data.train_split]
    data.make_splits(config.data, [*train_splits, *config.data.eval_splits])
    # Rows first, then the model: what is wrong with a data set is said at once.
    rows = _read_rows(config)
    data.check_splits(config.data, config.data.eval_splits)
    start = start_model(config, parallel.placement)
    if start.loaded is not None:
        console.print(f"model from {start.loaded.describe()}")
    model = models.with_dtype(start.model, config.dtype, config.run.attention)
    parallel.check_model(model)
    template = data.make_chat_template(start.tokenizer, config.data)
    console.print(f"prompts and completions: {template.describe()}")
    learned, source = _training_rows(config, rows, model, template, console)
    length_of = "longest prompt and completion of train_split, which max_length limits"
    models.check_length(model, learned.longest, length_of, start.tokenizer.model_max_length)
    return SupervisedInputs(start, model, template, learned, source)


def _read_held_out(
    config: SFTConfig, inputs: SupervisedInputs, learner: SFT, console: Console
) -> HeldOut:
    """Load the rows of eval_splits, and make what measures them."""
    tokenizer = inputs.start.tokenizer
    template = inputs.template
    evaluator = None
    left_out = {}
    if _scores_answers(config):
        evaluator = _make_evaluator(config, inputs, learner.parallel)
        rows = evaluator.rows
        left_out = evaluator.left_out
    else:
        rows = load_rows(config.data, config.reward, None)
    encode = partial(encode_held_out, config, inputs.model, tokenizer, template)
    encoded = {}
    fixed = {}
    for split, split_rows in rows.items():
        try:
            if evaluator is None:  # which has left them out
                num_rows = len(split_rows)
                split_rows = data.without_overlong(
                    tokenizer, split_rows, config.prompt_data, template, split
                )
                left_out[split] = num_rows - len(split_rows)
            encoded[split] = encode(split, split_rows, console.print)
        except DataError as error:
            # A run could do without the loss of rows that it does not learn from.
            console.warn(f"loss of split {split} left out: {error}")
            encoded[split] = []
            fixed[split] = []
            continue
        fixed[split] = encoded[split]
        chosen = choose_fixed(split_rows, config.evaluation.eval_rows, config.data.data_seed)
        if len(chosen) < len(split_rows):
            fixed[split] = encode(split, [split_rows[i] for i in chosen])
    data.report_left_out(console.print, config.data, left_out)
    loss = ReferenceLoss(
        inputs.model,
        learner.parallel,
        tokenizer.pad_token_id,
        config.evaluation.eval_batch_size,
        learner.room,
    )
    return HeldOut(encoded, fixed, loss, evaluator)


def _make_evaluator(
    config: SFTConfig, inputs: SupervisedInputs, parallel: DataParallel
) -> Evaluator:
    start = inputs.start
    load_model = registry.reward_model_loader(
        inputs.model,
        start.params,
        start.tokenizer,
        parallel.of_process(),
        inputs.model.source.eos_ids(inputs.template.end_id),
        config.data.system_prompt,
    )
    rewards = registry.make_rewards(config.reward, registry.Context(load_model))
    return make_evaluator(config, inputs.model, start.tokenizer, parallel, rewards)


def _loop_settings(config: SFTConfig, held_out: HeldOut) -> LoopConfig:
    """Return when a run evaluates and saves, with the metric of its best checkpoint, where there is a default.

    Raises:
        ConfigError: an evaluation does not measure the one that is named.
    """
    losses = held_out.loss_names
    loop = config.loop
    if held_out.evaluator is not None:
        loop = config.with_best_metric().loop
    elif losses:
        # Nothing else is measured.
        loop = loop.with_best_metric(losses[0])
    answers = set() if held_out.evaluator is None else held_out.evaluator.metric_names
    loop.check_evaluated(answers.union(losses))
    return loop


def _print_plan(run: Run, inputs: SupervisedInputs, learner: SFT, held_out: HeldOut) -> None:
    """Print what a run will do, and warn of settings that rarely do what was meant."""
    config = learner.config
    start = inputs.start
    parameters = sum(p.size for p in jax.tree.leaves(start.params))
    adapters = "" if start.adapter is None else f" under adapters of rank {start.adapter.r}"
    run.console.print(
        f"SFT: {config.num_updates} steps of {config.batch_size} rows out of {inputs.source}, "
        f"{parameters:,} parameters{adapters}, into {run.folder}"
    )
    budget = learner.budget(inputs.rows, held_out.memory)
    print_memory(run.console, budget)
    pretrained = None if start.loaded is None else parameters
    use_peft = start.adapter is not None
    for warning in optimizer.warnings(
        config.optimizer, config.num_updates, pretrained, supervised=True, use_peft=use_peft
    ):
        run.console.warn(warning)


def sft(config: SFTConfig) -> Path:
    """Train a model on reference plans, texts or chats; returns the run folder."""
    config, left_out = fit_to_data(config)
    run = begin("sft", config)
    if run.is_finished():
        return run.folder
    if left_out is not None:
        run.console.print(left_out)
    assert run.trackers is not None  # trackers that are not installed are met here
    inputs = read_inputs(config, run.parallel, run.console)
    learner = SFT(config, inputs.model, run.parallel, inputs.rows.length_gaps, inputs.start.adapter)
    held_out = _read_held_out(config, inputs, learner, run.console)
    loop = _loop_settings(config, held_out)
    _print_plan(run, inputs, learner, held_out)
    if config.run.dry_run:
        return run.folder
    params = inputs.start.params
    if registry.shares_policy(config.reward):
        # A step takes over the memory of the weights, and a reward computes with them.
        params = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
    with activity.show("placing the model"):
        state = run.parallel.put(learner.init_state(params, inputs.start.adapter_params))
    with hub.pushed(run), run.claimed(), reported(run.folder, run.console), run.trackers:
        _carry_out(run, loop, inputs, learner, held_out, state)
    return run.folder


def _carry_out(
    run: Run,
    loop: LoopConfig,
    inputs: SupervisedInputs,
    learner: SFT,
    held_out: HeldOut,
    state: TrainState,
) -> None:
    """Train, evaluate, export."""
    config = run.config
    start = inputs.start

    def evaluate(state: TrainState) -> dict[str, float]:
        results = held_out.measure(learner.whole_model(state), fixed_rows_only=True)
        for split, measures in results.items():
            # One that is no number stays among the metrics: the best checkpoint may be chosen by it.
            if "loss" in measures and not _warn_of_overflow(run.console, split, measures["loss"]):
                run.console.print(f"{split}: loss {measures['loss']:.4f} nats per token")
        return eval_metrics(results)

    is_frozen = start.adapter is not None
    base = base_of(config.model_path, start.loaded, inputs.model, "lm", is_frozen=is_frozen)
    end_ids = inputs.model.source.eos_ids(inputs.template.end_id)
    texts = inputs.template.describe()
    described = models_meta(base, None, start.adapter, end_ids, config.data.dataset, texts)
    steps = LoopSteps(
        total=config.num_updates,
        step=learner.step(inputs.rows),
        evaluate=evaluate,
        meta=run.meta(config, described),
        title="SFT",
        header=f"SFT of {config.model_path or 'a fresh model'} on {config.data.dataset}, into {run.folder}",
        watch=check_finite,
    )
    if processes.is_first():
        write_tokenizer(run.folder, start.tokenizer)
    state, meta = TrainingLoop(run, loop, steps, state).run()
    results = held_out.measure(learner.whole_model(state))
    for split, measures in results.items():
        if "loss" in measures and _warn_of_overflow(run.console, split, measures["loss"]):
            del measures["loss"]  # JSON has no word for it
    run.trackers.log(config.num_updates, eval_metrics(results))
    params, frozen = stacks.unstack(learner.parallel.to_host((state.params, state.frozen)))
    if processes.is_first():
        write_models(run.folder, meta, params, frozen, start.tokenizer, {"after": results})
    run.write_evals(results)
    print_results(run.console, results)
    run.console.print(f"model in {run.folder / 'policy'}")


def _warn_of_overflow(console: Console, split: str, loss: float) -> bool:
    """Warn of a loss that is no finite number; return whether it is none."""
    if math.isfinite(loss):
        return False
    console.warn(
        f"the loss of split {split} is {loss}: weights overflow, or a row of the split makes them"
    )
    return True


if __name__ == "__main__":
    cli.main(lambda: sft(parse_cli(SFTConfig, "sft")))
