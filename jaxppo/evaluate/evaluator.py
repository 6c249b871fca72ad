"""Generate on the evaluation splits and score the results, for all commands that evaluate."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import data
from jaxppo.config import (
    DataConfig,
    EvalConfig,
    EvaluateConfig,
    RewardConfig,
    SamplingConfig,
    SelfTrainConfig,
    SFTConfig,
    TrainConfig,
)
from jaxppo.data import Row
from jaxppo.evaluate.decoding import Completion, Decoder
from jaxppo.evaluate.grounded_decoding import decode_regrounded
from jaxppo.evaluate.intervals import clustered_wilson, mean_interval
from jaxppo.evaluate.plan_metrics import (
    Measures,
    Results,
    grouped,
    split_results,
)
from jaxppo.evaluate.predictions import JudgedRow, Prediction, judge_rows
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import memory
from jaxppo.reward_functions import plan, registry
from jaxppo.rewards import Completions, Rewards
from jaxppo.rl import ops
from jaxppo.run import activity
from jaxppo.types import Params

Sample = dict[str, Any]
"""A row with its first prediction, to be shown."""


class Predictions(NamedTuple):
    """Rows with the predictions for them.

    Attributes:
        rows: of one split.
        predictions: one or more for each row.
        scores: what reward functions give each prediction; None where plans alone are judged.
    """

    rows: list[Row]
    predictions: list[list[Prediction]]
    scores: list[list[float | None]] | None = None


class Evaluator:
    """Decode and judge completions of the evaluation splits; call it with the parameters of a language model.

    Args:
        model: configuration of the model.
        tokenizer: its tokenizer.
        parallel: devices.
        data_config: which splits.
        evaluation: batch size, temperature, validator, how many rows are fixed.
        reward: how plans are scored.
        sampling: where a completion ends, its most tokens and the repetition penalty; the rest comes from `evaluation`.
        seed: of the sampling, where the temperature is above 0.
        rewards: the functions that score completions, where there are others than the plan reward.
        rows: of each split, where they are loaded already.

    Attributes:
        rows: of each split, maybe of none; those with an overlong prompt left out where the data settings say so.
        left_out: how many were left out.
        fixed: indices of the rows of each split that `eval_rows` asks for.
        validator: which validator judges plans; None where the data are no planning problems.
        decoder: completes prompts.
    """

    def __init__(
        self,
        model: ModelConfig,
        tokenizer: Any,
        parallel: DataParallel,
        data_config: DataConfig,
        evaluation: EvalConfig,
        reward: RewardConfig,
        sampling: SamplingConfig,
        seed: int,
        rewards: Rewards | None = None,
        rows: Mapping[str, list[Row]] | None = None,
    ):
        self.parallel = parallel
        self._config = evaluation
        self._reward = reward
        self._seed = seed
        self._max_prompt_length = data_config.max_prompt_length
        self.decoder = Decoder(
            model,
            tokenizer,
            parallel,
            data_config,
            evaluation,
            sampling,
        )
        # Plans are judged for their results anyway, and a verdict
        # has the plan reward: scoring them would judge twice.
        self._rewards = None if reward.reward_funcs == ("plan",) else rewards
        self.validator = checked_validator(evaluation, reward)
        loaded_rows = load_rows(data_config, reward, self.validator) if rows is None else rows
        self.rows: dict[str, list[Row]] = {}
        self._encoded: dict[str, list[list[int]]] = {}
        self.left_out: dict[str, int] = {}
        self.fixed: dict[str, list[int]] = {}
        longest = 0
        for split, split_rows in loaded_rows.items():
            fitting, encoded = self._encode(split_rows, data_config, split)
            self.rows[split] = fitting
            self._encoded[split] = encoded
            self.left_out[split] = len(split_rows) - len(fitting)
            self.fixed[split] = choose_fixed(fitting, evaluation.eval_rows, data_config.data_seed)
            longest = max(longest, *map(len, encoded), 0)
            # A column that a reward function lacks is an
            # error now, and not after the first evaluation.
            if self._rewards is not None:
                self._rewards.check_columns(data.column_names(fitting))
        # One prompt length for all splits, so that they share compiled programs.
        self.decoder.fit_prompts(longest)

    def __call__(self, params: Params, *, fixed_rows_only: bool = False) -> dict[str, Measures]:
        """Return {split: results}, as from `results_of`.

        Args:
            params: of the language model.
            fixed_rows_only: look at the `fixed` rows alone, as evaluations during training do.
        """
        return self.with_samples(params, fixed_rows_only=fixed_rows_only)[0]

    def with_samples(
        self, params: Params, *, fixed_rows_only: bool = False
    ) -> tuple[dict[str, Measures], dict[str, list[Sample]]]:
        """Return the same, and {split: samples}, as from `samples_of`."""
        results = {}
        samples = {}
        for split in self.rows:
            with activity.show(f"evaluation of {split}"):
                rows = self.fixed[split] if fixed_rows_only else None
                predictions = self.predict(params, split, rows=rows)
                edges = self._config.length_edges
                results[split], judged = results_of(
                    predictions, self._reward, self.validator, edges
                )
            samples[split] = samples_of(predictions, judged)
        return results, samples

    @property
    def fixed_rows(self) -> dict[str, list[Row]]:
        """Return the fixed rows of each split."""
        return {split: self._select_rows(split, indices) for split, indices in self.fixed.items()}

    def _select_rows(self, split: str, indices: Iterable[int]) -> list[Row]:
        return [self.rows[split][i] for i in indices]

    @property
    def rows_and_length(self) -> tuple[int, int] | None:
        """Return how many rows a device decodes at once, and the tokens of their prompts; None without a split."""
        if not self.rows:
            return None
        # Memory is planned for the split with the largest batches.
        batch_size = max(self.decoder.batch_size_for(len(rows)) for rows in self.rows.values())
        return batch_size // self.parallel.row_shards, self.decoder.prompt_length

    @property
    def memory(self) -> dict[str, int]:
        """Return the bytes that an evaluation takes on a device beside the weights; {} without a split."""
        if self.rows_and_length is None:
            return {}
        return memory.evaluation_bytes(
            self.decoder.model, *self.rows_and_length, self.decoder.length
        )

    @property
    def metric_names(self) -> set[str]:
        """Return the names that `eval_metrics` has for an evaluation of the fixed rows."""
        # Known before the first evaluation, so that
        # `metric_for_best_model` can be checked when a run begins.
        names = {f"eval/{split}/mean_reward" for split in self.rows}
        if self.validator is None:
            return names
        for split, rows in self.fixed_rows.items():
            names.add(f"eval/{split}/validity")
            domains = {row["domain"] for row in rows}
            if len(domains) > 1:
                names |= {f"eval/{split}/{domain}/validity" for domain in domains}
        return names

    def _encode(
        self, rows: list[Row], config: DataConfig, split: str
    ) -> tuple[list[Row], list[list[int]]]:
        """Return the rows whose prompts fit, and the token ids of those prompts."""
        tokenizer = self.decoder.tokenizer
        template = self.decoder.template
        longest = self._max_prompt_length
        fitting = data.without_overlong(tokenizer, rows, config, template, split)
        # Where training cuts texts to prompts of random lengths,
        # an evaluation asks for completions of such prompts.
        if config.input_text_length is not None:
            return data.cut_prompts(
                tokenizer,
                fitting,
                longest,
                config.input_text_length,
                config.data_seed,
            )
        return fitting, data.encode_prompts(tokenizer, fitting, longest, template=template)

    def predict(
        self,
        params: Params,
        split: str,
        *,
        num_samples: int = 1,
        seed: int = 0,
        rows: Sequence[int] | None = None,
    ) -> Predictions:
        """Generate predictions for the rows of a split.

        Args:
            params: of the language model.
            split: name of the split.
            num_samples: predictions for each row.
            seed: number of the model, noted in its predictions.
            rows: indices of the rows, in their order; default: all.
        """
        indices = range(len(self.rows[split])) if rows is None else rows
        samples = [self.complete(params, split, sample, indices) for sample in range(num_samples)]
        # Sampled sample by sample, kept row by row.
        predictions = []
        for completions in zip(*samples, strict=True):
            predictions.append([completion.as_prediction(seed) for completion in completions])
        scores = None
        if self._rewards is not None:
            scores_by_sample = []
            for completions in samples:
                scores_by_sample.append(self._score(self._rewards, completions, split, indices))
            scores = [list(values) for values in zip(*scores_by_sample, strict=True)]
        return Predictions(self._select_rows(split, indices), predictions, scores)

    def predict_regrounded(
        self,
        params: Params,
        split: str,
        seed: int = 0,
    ) -> Predictions:
        """Generate a prediction for each fixed row of a split by a decoder that looks at the state of the problem.

        Args:
            params: of the language model.
            split: name of the split.
            seed: number of the model, noted in its predictions.
        """
        rows = self.fixed_rows[split]
        predictions = decode_regrounded(
            self.decoder,
            params,
            rows,
            self._max_prompt_length,
            seed,
        )
        return Predictions(rows, [[prediction] for prediction in predictions])

    def _score(
        self,
        rewards: Rewards,
        completions: Sequence[Completion],
        split: str,
        indices: Sequence[int],
    ) -> Sequence[float | None]:
        rows = self._select_rows(split, indices)
        # All columns of the split, not of these rows: a reward
        # function gets the same arguments at each call.
        columns = data.columns_of(rows, data.column_names(self.rows[split]))
        columns["prompt_ids"] = [self._encoded[split][i] for i in indices]
        return rewards(
            Completions(
                [row["prompt"] for row in rows],
                [completion.text for completion in completions],
                [completion.ids for completion in completions],
                columns,
            )
        ).values

    def complete(
        self,
        params: Params,
        split: str,
        sample: int = 0,
        chosen: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Generate one completion for each row of a split, or for the chosen ones; similar lengths share a batch.

        A row's completion depends on seed, split, row and sample, not on the rows beside it.
        """
        indices = range(len(self.rows[split])) if chosen is None else chosen
        prompts = [self._encoded[split][i] for i in indices]
        return self.decoder(params, prompts, self._uniforms(split, sample, indices))

    def _uniforms(
        self,
        split: str,
        sample: int,
        chosen: Sequence[int],
    ) -> np.ndarray:
        """Return what decides the samples of some rows.

        The numbers of all rows are drawn, and those of the chosen ones taken: a row's place in the split decides its
        numbers, so that evaluations of few and of all rows sample the same plans for a row.
        """
        # A checksum, as Python's hash of a name differs from process to process.
        split_number = zlib.crc32(split.encode())
        key = ops.purpose_key(self._seed, ops.Purpose.EVALUATION)
        key = jax.random.fold_in(key, split_number)
        if sample:
            key = jax.random.fold_in(key, sample)
        uniforms = ops.row_uniforms(key, len(self.rows[split]), self.decoder.length)
        return np.asarray(uniforms)[np.asarray(chosen, int)]


# ---------------------------------------------------------------------------------------------------------------- input


def checked_validator(evaluation: EvalConfig, reward: RewardConfig) -> str | None:
    """Return the validator, after a trial run; None where the data are no planning problems."""
    if not reward.judges_plans:
        return None
    validator = evaluation.eval_validator or plan.default_validator()
    plan.check_validator(validator)
    return validator


def load_rows(
    config: DataConfig, reward: RewardConfig, validator: str | None
) -> dict[str, list[Row]]:
    """Load the rows of every evaluation split; the column `split` of planning problems gets the name asked for."""
    judges = None if validator is None else reward.reads_pddl_for(validator)
    splits = {split: data.load_split(config, split, judges) for split in config.eval_splits}
    for split, rows in splits.items():
        data.check_same(config.dataset, split, rows)
    if validator is None:
        return splits
    # A file may hold rows of another split's name;
    # results are listed under the one that was asked for.
    for split, rows in splits.items():
        splits[split] = [row | {"split": split} for row in rows]
    return splits


def choose_fixed(rows: Sequence[Row], max_rows: int | None, seed: int) -> list[int]:
    """Choose the indices of at most `max_rows` rows, evenly over the domains; `seed` alone decides which.

    Each domain's rows are shuffled, and the domains take turns; so fewer rows are always among more. Rows without the
    column `domain` are of one domain.
    """
    if max_rows is None or max_rows >= len(rows):
        return list(range(len(rows)))
    domains = grouped(range(len(rows)), lambda i: str(rows[i].get("domain", "")))
    # (turn, number of the domain, row)
    turns: list[tuple[int, int, int]] = []
    # Sorted, so that the number of a domain, and with it the
    # order of its rows, does not depend on other domains' rows.
    for number, name in enumerate(sorted(domains)):
        shuffled = np.random.default_rng((seed, number)).permutation(domains[name])
        turns += [(turn, number, int(row)) for turn, row in enumerate(shuffled)]
    # By turns first, so that every domain has given a row before any gives its second.
    return sorted(row for _, _, row in sorted(turns)[:max_rows])


def make_evaluator(
    config: TrainConfig | SelfTrainConfig | SFTConfig | EvaluateConfig,
    model: ModelConfig,
    tokenizer: Any,
    parallel: DataParallel,
    rewards: Rewards | None = None,
    rows: Mapping[str, list[Row]] | None = None,
) -> Evaluator:
    """Make the evaluator that a command's configuration asks for."""
    # SFT does not sample, so it has no other settings of sampling.
    if isinstance(config, SFTConfig):
        sampling = SamplingConfig(response_length=config.response_length)
    else:
        sampling = config.sampling
    return Evaluator(
        model,
        tokenizer,
        parallel,
        config.data,
        config.evaluation,
        config.reward,
        sampling,
        config.run.seed,
        rewards,
        rows,
    )


# -------------------------------------------------------------------------------------------------------------- results


def results_of(
    predicted: Predictions,
    reward: RewardConfig,
    validator: str | None,
    edges: Sequence[int],
) -> tuple[Measures, list[JudgedRow]]:
    """Compute the results of one split, and its judged rows where plans are judged.

    Returns:
        `plan_metrics.split_results` and "validator" for plans; "mean_reward" and "reward", with an interval of twice
        the standard error, for other rewards than the plan reward alone; "ended"; and "mean_tokens", sampled for an
        answer, where that is known.
    """
    results: Measures = {"ended": _ended_rate(predicted.predictions)}
    judged: list[JudgedRow] = []
    if validator is not None:
        scoring = registry.plan_scoring(reward, validator)
        with activity.show("judging"):
            judged = judge_rows(predicted.rows, predicted.predictions, scoring)
        # These have an "ended" of their own: plans from a file need not say whether they ended.
        results = split_results(judged, edges) | {"validator": validator}
    tokens = []
    for row_predictions in predicted.predictions:
        tokens.append([prediction.tokens for prediction in row_predictions])
    mean_tokens = _row_means(tokens)
    if mean_tokens:
        results["mean_tokens"] = fmean(mean_tokens)
    if predicted.scores is not None:
        interval = mean_interval(_row_means(predicted.scores))
        results |= {"mean_reward": interval["mean"], "reward": interval}
    return results, judged


def _ended_rate(predictions: Sequence[Sequence[Prediction]]) -> dict[str, float]:
    num_ended = []
    for row_predictions in predictions:
        num_ended.append(sum(bool(prediction.ended) for prediction in row_predictions))
    return clustered_wilson(num_ended, list(map(len, predictions)))


def samples_of(
    predicted: Predictions, judged: Sequence[JudgedRow], max_rows: int = 5
) -> list[Sample]:
    """Return the first rows of a split with their first prediction: id, prompt, completion, score, verdict."""
    samples = []
    for i, row in enumerate(predicted.rows[:max_rows]):
        prediction = predicted.predictions[i][0]
        sample = {
            "id": row["id"],
            "prompt": row["prompt"],
            "completion": prediction.text,
        }
        if judged:
            outcome = judged[i].predictions[0].outcome
            sample["verdict"] = plan.describe(outcome.verdict)
            sample["score"] = outcome.reward
        # Where other functions score, the plan reward of the verdict is not what training sees.
        if predicted.scores is not None:
            sample["score"] = predicted.scores[i][0]
        samples.append(sample)
    return samples


def _row_means(values: Iterable[Sequence[float | None]]) -> list[float]:
    """Average what is known of each row; a row of which nothing is known is left out."""
    means = []
    for row_values in values:
        known_values = [value for value in row_values if value is not None]
        if known_values:
            means.append(fmean(known_values))
    return means


def eval_metrics(results: Results) -> dict[str, float]:
    """Return the metrics that an evaluation adds to the record of its update, per domain where there are several."""
    validity = {}
    domain_validity = {}
    others = {}
    for split, result in results.items():
        for name in ("mean_reward", "loss"):
            if name in result:
                others[f"eval/{split}/{name}"] = result[name]
        if "validity" not in result:
            continue
        validity[f"eval/{split}/validity"] = result["validity"]["rate"]
        # A single domain would have the same number as the split.
        if len(result["domains"]) > 1:
            for domain, cell in result["domains"].items():
                domain_validity[f"eval/{split}/{domain}/validity"] = cell["validity"]["rate"]
    # Records name the validity of all splits first.
    return validity | domain_validity | others
