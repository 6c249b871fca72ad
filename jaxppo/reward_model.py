"""Train a reward model from preferences: `python -m jaxppo.reward_model --dataset FOLDER --model_path DIR`.

Writes a run folder with `config.yaml`, `metrics.jsonl`, `checkpoints/`, `reward_model/` (Hugging Face), with LoRA also
`adapters/reward_model/` (PEFT), `eval.json` and `report.html`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxppo import hf, models
from jaxppo.config import DEFAULT_PAIR_SPLITS, DataConfig, RewardModelConfig
from jaxppo.config.sources import parse_cli
from jaxppo.data import (
    ChatTemplate,
    check_same,
    make_chat_template,
    without_missing_splits,
)
from jaxppo.data.preferences import Pair, PairBatch, Pairs, PreferenceData, encode_pairs, load_rows
from jaxppo.errors import ConfigError, DataError
from jaxppo.evaluate.intervals import interval_text, wilson
from jaxppo.hf import hub
from jaxppo.hf.export import REWARD_MODEL, base_of, models_meta, write_models, write_tokenizer
from jaxppo.nn import ModelConfig, lora
from jaxppo.parallel import processes, stacks
from jaxppo.profiling import memory, sizes
from jaxppo.report.run_page import reported
from jaxppo.reward_functions.score_head import RowScorer, score_rows
from jaxppo.rl import ops, optimizer
from jaxppo.rl.describe import print_memory
from jaxppo.rl.start import adapter_of
from jaxppo.rl.supervised import TrainedAlone, check_finite
from jaxppo.run import activity, cli, preemption
from jaxppo.run.console import Console
from jaxppo.run.folder import Run, begin
from jaxppo.run.loop import LoopSteps, TrainingLoop
from jaxppo.types import Array, Params, Stats


def preference_loss(
    chosen: Array,
    rejected: Array,
    margins: Array,
    weights: Array,
    center_rewards_coefficient: float | None = None,
) -> tuple[Array, Stats]:
    """Bradley-Terry loss of score pairs, and TRL's metrics; these pairs' part of both.

    loss = mean(-log sigmoid(r_chosen - r_rejected - margin)) + c mean((r_chosen + r_rejected)^2). A pair with equal
    scores counts as wrong in the accuracy.

    Args:
        chosen: [B] fp32 scores.
        rejected: [B] fp32 scores.
        margins: [B] fp32.
        weights: [B] fp32, each pair's share of the mean: 1 in sum over micro-batches and devices.
        center_rewards_coefficient: c; None for 0.

    Returns:
        Loss and {"loss", "accuracy", "margin", "mean_reward"}, see `update.Loss`.

    Source: TRL 1.12 RewardTrainer.compute_loss; Bradley and Terry 1952; centering: arXiv:2312.09244.
    """
    difference = chosen - rejected
    # Not the log of a sigmoid, which is infinite where a pair is far off.
    loss = ops.weighted_sum(-jax.nn.log_sigmoid(difference - margins), weights)
    if center_rewards_coefficient is not None:
        loss += center_rewards_coefficient * ops.weighted_sum((chosen + rejected) ** 2, weights)
    return loss, {
        "loss": loss,
        "accuracy": ops.weighted_sum((difference > 0).astype(jnp.float32), weights),
        "margin": ops.weighted_sum(difference, weights),
        "mean_reward": ops.weighted_sum(0.5 * (chosen + rejected), weights),
    }


class RewardModelStart(NamedTuple):
    """The model that training starts from."""

    model: ModelConfig
    params: Params  # {"trunk", "score"}
    tokenizer: Any
    loaded: hf.LoadedModel


def start_model(
    config: RewardModelConfig, placement: hf.Placement | None = None
) -> RewardModelStart:
    """Read the model to start from; a score head that it lacks has standard deviation 1 / sqrt(hidden_size + 1).

    Args:
        config: of the command.
        placement: see `hf.load_model`.

    Raises:
        ModelError: the folder is missing or does not hold what it should.

    Source: of the head, OpenAI's summarize-from-feedback.
    """
    folder = hf.find_model(str(config.model_path))
    tokenizer = hf.load_tokenizer(folder)
    loaded = hf.load_model(folder, head="score", placement=placement)
    model = loaded.config
    hf.check_tokenizer(tokenizer, model, str(folder))
    params = loaded.params
    if "score" not in params:
        key = jax.random.fold_in(ops.purpose_key(config.run.seed, ops.Purpose.INIT), 1)
        head = models.init_score_head(model, key, scale=(model.hidden_size + 1) ** -0.5)
        params = params | {"score": head}
    # transformers finds the last token of a row by the pad id, which must be no other token's.
    pad_id = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
    return RewardModelStart(
        dataclasses.replace(model, pad_token_id=pad_id), params, tokenizer, loaded
    )


class RewardModelLearner(TrainedAlone):
    """Training of a reward model of one architecture on all devices."""

    config: RewardModelConfig
    head = "score"
    texts_per_row = 2  # the chosen and the rejected one

    def loss(self, params: Params, batch: PairBatch, weights: Array) -> tuple[Array, Stats]:
        """See `preference_loss`."""
        # Both texts of each pair, read in one pass.
        ids = jnp.concatenate([batch.chosen_ids, batch.rejected_ids])
        lengths = jnp.concatenate([batch.chosen_lengths, batch.rejected_lengths])
        chosen, rejected = jnp.split(score_rows(params, ids, lengths, model=self.trained), 2)
        return preference_loss(
            chosen, rejected, batch.margins, weights, self.config.center_rewards_coefficient
        )

    def with_weights(self, batch: PairBatch) -> tuple[PairBatch, np.ndarray]:
        """Return the pairs of a step, and each one's share of the mean."""
        count = len(batch.chosen_ids)
        # Shares of the whole step, so that micro-batches and devices add up to its mean.
        return batch, np.full(count, 1 / count, np.float32)

    def budget(self, pairs: PreferenceData) -> memory.Budget:
        """Estimate the memory of steps on these pairs, and of an evaluation."""
        count, length = pairs.longest_batch().chosen_ids.shape
        scored = self.config.eval_batch_size // self.parallel.row_shards
        scored = max(1, min(scored, memory.rows_at_once([self.model], length) or scored))
        evaluation = {"activations": sizes.scored_bytes(self.model, scored, length)}
        return self.budget_of(count, length, 0, evaluation)


def evaluate_pairs(
    score: Callable[[Sequence[Sequence[int]]], np.ndarray],
    pairs: Sequence[Pair],
    center_rewards_coefficient: float | None,
) -> dict[str, Any]:
    """Measure a reward model on pairs: {"accuracy": rate with its Wilson interval and n, "loss", "margin", ...}.

    Args:
        score: from token rows to their scores.
        pairs: at least one.
        center_rewards_coefficient: part of the loss.
    """
    preemption.check()
    count = len(pairs)
    texts = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    with activity.show(f"evaluation of {count} pairs"):
        scores = activity.run_interruptibly(lambda: score(texts))
    chosen = scores[:count]
    rejected = scores[count:]
    margins = jnp.asarray([pair.margin for pair in pairs])
    weights = jnp.full(count, 1 / count)
    _, stats = preference_loss(
        jnp.asarray(chosen), jnp.asarray(rejected), margins, weights, center_rewards_coefficient
    )
    result: dict[str, Any] = {name: float(value) for name, value in stats.items()}
    # Of the scores on the host, so that it is a whole number of pairs.
    result["accuracy"] = wilson(int(np.sum(chosen > rejected)), count)
    return result


def eval_metrics(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return what an evaluation adds to the record of its step.

    TRL's names, `eval_loss` and so on, are of the first split, and `eval_<split>_loss` of the others;
    `eval/<split>/accuracy` is there for each, as the name that `metric_for_best_model` knows for an evaluation.
    """
    metrics = {}
    for number, (split, result) in enumerate(results.items()):
        prefix = "eval_" if number == 0 else f"eval_{split}_"
        plain = result | {"accuracy": result["accuracy"]["rate"]}
        metrics |= {f"{prefix}{name}": value for name, value in plain.items()}
        metrics[f"eval/{split}/accuracy"] = plain["accuracy"]
    return metrics


def load_pairs(
    config: RewardModelConfig, template: ChatTemplate, max_length: int, console: Console
) -> dict[str, Pairs]:
    """Load the pairs of the learner and evaluation splits; warn of how many were too long, or have equal texts.

    Raises:
        DataError: as for `load_rows` and `encode_pairs`.
    """
    splits = {}
    for split in dict.fromkeys([config.train_split, *config.eval_splits]):
        place = f"{config.dataset}, split {split}"
        rows = load_rows(str(config.dataset), split, config.dataset_config)
        check_same(str(config.dataset), split, rows)
        splits[split] = encode_pairs(template.tokenizer, rows, max_length, place, template)
        num_too_long = splits[split].num_too_long
        if num_too_long:
            count = num_too_long + len(splits[split].pairs)
            console.warn(
                f"{place}: {num_too_long} of {count} pairs are longer than {max_length} tokens and left out; a larger "
                "max_length, within the model's own, keeps them"
            )
        num_equal = splits[split].num_equal
        if num_equal:
            console.warn(
                f"{place}: {num_equal} of {len(splits[split].pairs)} pairs have the same text as chosen and rejected, "
                "which says nothing of what is preferred; they count as wrong in the accuracy"
            )
    return splits


def train_reward_model(config: RewardModelConfig) -> Path:
    """Train a reward model; returns the run folder."""
    if config.dataset is None:
        raise DataError("dataset: expected a folder with preference data or a hub id, got None")
    if config.model_path is None:
        raise ConfigError("model_path: expected a language model or a reward model, got None")
    fitting, left_out = without_missing_splits(
        DataConfig(
            dataset=config.dataset,
            dataset_config=config.dataset_config,
            eval_splits=config.eval_splits,
        ),
        DEFAULT_PAIR_SPLITS,
    )
    config = dataclasses.replace(config, eval_splits=fitting.eval_splits)
    config.loop.check_evaluated([f"eval/{split}/accuracy" for split in config.eval_splits])
    run = begin("reward_model", config)
    if run.is_finished():
        return run.folder
    console = run.console
    if left_out is not None:
        console.print(left_out)
    folder = run.folder
    parallel = run.parallel
    assert run.trackers is not None  # trackers that are not installed are met here
    start = start_model(config, parallel.placement)
    parallel.check_model(start.model)
    adapter = adapter_of(config.peft) if config.peft.use_peft else None
    if adapter is not None:
        lora.check_targets(start.model, adapter)
    console.print(f"model from {start.loaded.describe()}")
    longest = min(config.max_length, start.model.max_length or config.max_length)
    template = make_chat_template(
        start.tokenizer,
        DataConfig(
            use_chat_template=config.use_chat_template,
            system_prompt=config.system_prompt,
            chat_template_kwargs=config.chat_template_kwargs,
        ),
    )
    console.print(f"prompts and completions: {template.describe()}")
    splits = load_pairs(config, template, longest, console)
    train_pairs = splits[config.train_split].pairs
    num_steps = config.num_updates(len(train_pairs))
    parameters = sum(p.size for p in jax.tree.leaves(start.params))
    console.print(
        f"reward model: {num_steps} steps of {config.batch_size} pairs out of "
        f"{len(train_pairs)}, {parameters:,} parameters, into {folder}"
    )
    for warning in optimizer.warnings(
        config.optimizer, num_steps, parameters, supervised=True, use_peft=config.peft.use_peft
    ):
        console.warn(warning)
    model = models.with_dtype(start.model, config.dtype, config.run.attention)
    learner = RewardModelLearner(config, model, parallel, adapter=adapter)
    data = PreferenceData(train_pairs, config.batch_size, config.run.seed, model.max_length)
    print_memory(console, learner.budget(data))
    if config.run.dry_run:
        return folder
    with hub.pushed(run), run.claimed(), reported(folder, console):
        if processes.is_first():
            write_tokenizer(folder, start.tokenizer)
        _train(run, learner, start, splits, data, template.describe())
    return folder


def _train(
    run: Run,
    learner: RewardModelLearner,
    start: RewardModelStart,
    splits: dict[str, Pairs],
    data: PreferenceData,
    texts: str,
) -> None:
    """Evaluate, train, evaluate again, and write everything; `texts` says how prompts and completions are read."""
    config = learner.config
    parallel = learner.parallel
    trackers = run.trackers
    train_pairs = splits[config.train_split].pairs
    num_steps = config.num_updates(len(train_pairs))
    scorer = RowScorer(learner.model, parallel, config.eval_batch_size)

    def evaluate(params: Params) -> dict[str, dict[str, Any]]:
        results = {}
        for split in config.eval_splits:
            results[split] = evaluate_pairs(
                partial(scorer, params), splits[split].pairs, config.center_rewards_coefficient
            )
        return results

    results: dict[str, Any] = {
        "headline_split": next(iter(config.eval_splits), None),
        "before": evaluate(parallel.put(start.params)),
        "too_long": {split: pairs.num_too_long for split, pairs in splits.items()},
    }
    is_frozen = learner.adapter is not None
    base = base_of(config.model_path, start.loaded, learner.model, "score", is_frozen=is_frozen)
    base |= {"kind": "reward"}
    dataset = str(config.dataset)
    steps = LoopSteps(
        total=num_steps,
        step=learner.step_on(learner.make_step(num_steps), data.batch),
        evaluate=lambda state: eval_metrics(evaluate(learner.whole_model(state))),
        meta=run.meta(config, models_meta(base, None, learner.adapter, (), dataset, texts)),
        title="reward model",
        header=f"reward model from {config.model_path} on {config.dataset}, into {run.folder}",
        before=eval_metrics(results["before"]),
        watch=check_finite,
    )
    with trackers:
        state = parallel.put(learner.init_state(start.params))
        state, last = TrainingLoop(run, config.loop, steps, state).run()
        results["after"] = evaluate(learner.whole_model(state))
        trackers.log(num_steps, eval_metrics(results["after"]))
    # The loss leaves a constant undetermined; PPO subtracts this one.
    chosen_scores = scorer(learner.whole_model(state), [pair.chosen for pair in train_pairs])
    results["reward_bias"] = float(np.mean(chosen_scores, dtype=np.float64))
    params, frozen = stacks.unstack(parallel.to_host((state.params, state.frozen)))
    if processes.is_first():
        write_models(run.folder, last, params, frozen, start.tokenizer, results)
    run.write_evals(results)
    for split, result in results["after"].items():
        accuracy = result["accuracy"]
        run.console.result(
            f"{split}: {interval_text(accuracy)} of {accuracy['n']} pairs ordered right, "
            f"margin {result['margin']:.3f}"
        )
    run.console.print(f"model in {run.folder / REWARD_MODEL}")


if __name__ == "__main__":
    cli.main(lambda: train_reward_model(parse_cli(RewardModelConfig, "reward_model")))
