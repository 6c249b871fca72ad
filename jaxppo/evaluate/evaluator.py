"""Generate on the evaluation splits and score the results, for all commands that evaluate."""

import zlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import data
from jaxppo.config import (
    DataConfig,
    EvalConfig,
    EvaluateConfig,
    RepairConfig,
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
from jaxppo.evaluate.plan_metrics import grouped, split_results
from jaxppo.evaluate.predictions import JudgedRow, Prediction, judge_rows
from jaxppo.evaluate.repair import Attempt, repair_plans, repair_results
from jaxppo.nn import ModelConfig
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import aot, memory
from jaxppo.reward_functions import plan, registry
from jaxppo.rewards import Completions, Rewards
from jaxppo.rl import ops
from jaxppo.run import activity
from jaxppo.types import Params


class Predictions(NamedTuple):
    """Rows with the predictions for them.

    Attributes:
        rows: of one split.
        predictions: one or more for each row.
        scores: what reward functions give each prediction; None where plans alone are judged.
        tokens: sampled for each prediction; None where that is not known.
        repairs: the attempts that each prediction is the first of; None without repair rounds.
    """

    rows: list[Row]
    predictions: list[list[Prediction]]
    scores: list[list[float | None]] | None = None
    tokens: list[list[int]] | None = None
    repairs: list[list[list[Attempt]]] | None = None


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
        self.parallel, self._config, self._reward, self._seed = parallel, evaluation, reward, seed
        self._longest = data_config.longest_prompt
        self.decoder = Decoder(model, tokenizer, parallel, data_config, evaluation, sampling)
        self._rewards = None if reward.reward_funcs == ("plan",) else rewards
        self.validator = checked_validator(evaluation, reward)
        self.rows, self._encoded = {}, {}
        self.left_out: dict[str, int] = {}
        for split, loaded in (load_rows(data_config, reward, self.validator) if rows is None else rows).items():
            self.rows[split], self._encoded[split] = self._encode(loaded, data_config)
            self.left_out[split] = len(loaded) - len(self.rows[split])
            if self._rewards is not None:
                self._rewards.check_columns(data.column_names(self.rows[split]))
        self.fixed = {
            split: choose_fixed(of_split, evaluation.eval_rows, data_config.data_seed)
            for split, of_split in self.rows.items()
        }
        lengths = [len(ids) for encoded in self._encoded.values() for ids in encoded]
        self.decoder.make_room(max(lengths, default=0))

    def __call__(self, params: Params, *, fixed_rows_only: bool = False) -> dict[str, dict[str, Any]]:
        """Return {split: results}, as from `results_of`.

        Args:
            params: of the language model.
            fixed_rows_only: look at the `fixed` rows alone, as evaluations during training do.
        """
        return self.with_samples(params, fixed_rows_only=fixed_rows_only)[0]

    def with_samples(
        self, params: Params, *, fixed_rows_only: bool = False
    ) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        """Return the same, and {split: samples}, as from `samples_of`."""
        results, samples = {}, {}
        for split in self.rows:
            with activity.shown(f"evaluation of {split}"):
                predicted = self.predict(params, split, rows=self.fixed[split] if fixed_rows_only else None)
                of_split, judged = results_of(predicted, self._reward, self.validator, self._config.length_edges)
            results[split], samples[split] = of_split, samples_of(predicted, judged)
        return results, samples

    @property
    def fixed_rows(self) -> dict[str, list[Row]]:
        """Return the fixed rows of each split."""
        return {split: [self.rows[split][i] for i in chosen] for split, chosen in self.fixed.items()}

    @property
    def rows_and_length(self) -> tuple[int, int] | None:
        """Return how many rows a device decodes at once, and the tokens of their prompts; None without a split."""
        if not self.rows:
            return None
        rows = max(self.decoder.rows_for(len(of_split)) for of_split in self.rows.values())
        return rows // self.parallel.row_shards, self.decoder.prompt_length

    @property
    def memory(self) -> dict[str, int]:
        """Return the bytes that an evaluation takes on a device beside the weights; {} without a split."""
        if self.rows_and_length is None:
            return {}
        return memory.evaluation_bytes(self.decoder.model, *self.rows_and_length, self.decoder.length)

    @property
    def metric_names(self) -> set[str]:
        """Return the names that `eval_metrics` has for an evaluation of the fixed rows."""
        names = {f"eval/{split}/mean_reward" for split in self.rows}
        for split, chosen in self.fixed.items() if self.validator is not None else ():
            domains = {self.rows[split][i]["domain"] for i in chosen}
            names |= {f"eval/{split}/validity"}
            names |= {f"eval/{split}/{domain}/validity" for domain in domains if len(domains) > 1}
        return names

    def plan(self, params: Params) -> aot.Plan:
        """Plan the program that generates, for devices that are not there.

        Args:
            params: shapes of a language model.
        """
        return self.decoder.plan(params)

    def _encode(self, rows: list[Row], config: DataConfig) -> tuple[list[Row], list[list[int]]]:
        tokenizer, template = self.decoder.tokenizer, self.decoder.template
        fitting, longest = data.without_overlong(tokenizer, rows, config, template), config.longest_prompt
        if config.text_lengths is not None:
            return data.cut_prompts(tokenizer, fitting, longest, config.text_lengths, config.data_seed)
        return fitting, data.encode_prompts(tokenizer, fitting, longest, template=template)

    def predict(
        self, params: Params, split: str, *, num_samples: int = 1, seed: int = 0, rows: Sequence[int] | None = None
    ) -> Predictions:
        """Generate predictions for the rows of a split.

        Args:
            params: of the language model.
            split: name of the split.
            num_samples: predictions for each row.
            seed: number of the model, noted in its predictions.
            rows: indices of the rows, in their order; default: all.
        """
        chosen = range(len(self.rows[split])) if rows is None else rows
        samples = [self.complete(params, split, sample, chosen) for sample in range(num_samples)]
        predictions = [
            [Prediction(text, ended, seed) for text, ended, _ in given] for given in zip(*samples, strict=True)
        ]
        scores = None
        if self._rewards is not None:
            scored = [self._score(self._rewards, completions, split, chosen) for completions in samples]
            scores = [list(values) for values in zip(*scored, strict=True)]
        tokens = [[len(completion.ids) for completion in given] for given in zip(*samples, strict=True)]
        return Predictions([self.rows[split][i] for i in chosen], predictions, scores, tokens)

    def predict_regrounded(self, params: Params, split: str, seed: int = 0) -> Predictions:
        """Generate a prediction for each fixed row of a split by a decoder that looks at the state of the problem.

        Args:
            params: of the language model.
            split: name of the split.
            seed: number of the model, noted in its predictions.
        """
        rows = self.fixed_rows[split]
        answers = decode_regrounded(self.decoder, params, rows, self._longest)
        predictions = [[Prediction(answer.text, answer.ended, seed)] for answer in answers]
        return Predictions(rows, predictions, tokens=[[answer.tokens] for answer in answers])

    def predict_repaired(self, params: Params, split: str, repair: RepairConfig, seed: int = 0) -> Predictions:
        """Generate a prediction for each fixed row of a split, and others after those that are not valid.

        Args:
            params: of the language model.
            split: name of the split.
            repair: how many rounds, and what is said.
            seed: number of the model, noted in its predictions.
        """
        fixed, first = self.fixed[split], self.decoder
        later = first if repair.repair_temperature is None else first.at(repair.repair_temperature)

        def ask(number: int, chosen: Sequence[int], encoded: Sequence[list[int]]) -> list[Completion]:
            decoder = later if number else first
            decoder.make_room(max(map(len, encoded)))
            return decoder(params, encoded, self._uniforms(split, number, [fixed[i] for i in chosen]))

        limits = [] if self._longest is None else [self._longest]
        if first.model.max_length is not None:
            limits.append(first.model.max_length - first.length)
        # Without a limit a conversation ends where the model was made for no more.
        most = min(limits, default=first.model.max_position_embeddings - first.length)
        scoring = registry.plan_scoring(self._reward, self.validator or plan.default_validator())
        rows, encoded = self.fixed_rows[split], [self._encoded[split][i] for i in fixed]
        attempts = repair_plans(rows, encoded, ask, first.template, repair, scoring, most, seed)
        predictions = [[of_row[0].judged.prediction] for of_row in attempts]
        tokens = [[of_row[0].tokens] for of_row in attempts]
        return Predictions(rows, predictions, tokens=tokens, repairs=[[of_row] for of_row in attempts])

    def _score(
        self, rewards: Rewards, completions: Sequence[Completion], split: str, chosen: Sequence[int]
    ) -> Sequence[float | None]:
        rows = [self.rows[split][i] for i in chosen]
        columns = data.columns_of(rows, data.column_names(self.rows[split])) | {
            "prompt_ids": [self._encoded[split][i] for i in chosen]
        }
        texts, ids = [c.text for c in completions], [c.ids for c in completions]
        return rewards(Completions([row["prompt"] for row in rows], texts, ids, columns)).values

    def complete(
        self, params: Params, split: str, sample: int = 0, chosen: Sequence[int] | None = None
    ) -> list[Completion]:
        """Generate one completion for each row of a split, or for the chosen ones; similar lengths share a batch.

        A row's completion depends on seed, split, row and sample, not on the rows beside it.
        """
        encoded = self._encoded[split]
        chosen = range(len(encoded)) if chosen is None else chosen
        return self.decoder(params, [encoded[i] for i in chosen], self._uniforms(split, sample, chosen))

    def _uniforms(self, split: str, sample: int, chosen: Sequence[int]) -> np.ndarray:
        """Return what decides the samples of some rows."""
        key = jax.random.fold_in(ops.purpose_key(self._seed, ops.Purpose.EVALUATION), zlib.crc32(split.encode()))
        key = jax.random.fold_in(key, sample) if sample else key
        return np.asarray(ops.row_uniforms(key, len(self.rows[split]), self.decoder.length))[np.asarray(chosen, int)]


# ---------------------------------------------------------------------------------------------------------------- input


def checked_validator(evaluation: EvalConfig, reward: RewardConfig) -> str | None:
    """Return the validator, after a trial run; None where the data are no planning problems."""
    if not reward.judges_plans:
        return None
    validator = evaluation.eval_validator or plan.default_validator()
    plan.check_validator(validator)
    return validator


def load_rows(config: DataConfig, reward: RewardConfig, validator: str | None) -> dict[str, list[Row]]:
    """Load the rows of every evaluation split; the column `split` of planning problems gets the name asked for."""
    judges = None if validator is None else reward.reads_pddl_for(validator)
    splits = {split: data.load_split(config, split, judges) for split in config.eval_splits}
    for split, rows in splits.items():
        data.check_same(config.dataset, split, rows)
    if validator is None:
        return splits
    return {split: [row | {"split": split} for row in rows] for split, rows in splits.items()}


def choose_fixed(rows: Sequence[Row], most: int | None, seed: int) -> list[int]:
    """Choose the indices of at most `most` rows, evenly over the domains; `seed` alone decides which.

    Each domain's rows are shuffled, and the domains take turns; so fewer rows are always among more. Rows without the
    column `domain` are of one domain.
    """
    if most is None or most >= len(rows):
        return list(range(len(rows)))
    domains = grouped(range(len(rows)), lambda i: str(rows[i].get("domain", "")))
    order = [
        np.random.default_rng((seed, place)).permutation(domains[name]) for place, name in enumerate(sorted(domains))
    ]
    turns = [(turn, place, int(i)) for place, shuffled in enumerate(order) for turn, i in enumerate(shuffled)]
    return sorted(i for _, _, i in sorted(turns)[:most])


def make_evaluator(
    config: TrainConfig | SelfTrainConfig | SFTConfig | EvaluateConfig,
    model: ModelConfig,
    tokenizer: Any,
    parallel: DataParallel,
    rewards: Rewards | None = None,
    rows: Mapping[str, list[Row]] | None = None,
) -> Evaluator:
    """Make the evaluator that a command's configuration asks for."""
    if isinstance(config, SFTConfig):
        sampling = SamplingConfig(response_length=config.response_length)
    else:
        sampling = config.sampling
    settings = (config.data, config.evaluation, config.reward, sampling, config.run.seed)
    return Evaluator(model, tokenizer, parallel, *settings, rewards, rows)


# -------------------------------------------------------------------------------------------------------------- results


def results_of(
    predicted: Predictions, reward: RewardConfig, validator: str | None, edges: Sequence[int]
) -> tuple[dict[str, Any], list[JudgedRow]]:
    """Compute the results of one split, and its judged rows where plans are judged.

    Returns:
        `plan_metrics.split_results` and "validator" for plans; "mean_reward" and "reward", with an interval of twice
        the standard error, for other rewards than the plan reward alone; "ended"; "mean_tokens", sampled for an
        answer, where that is known; and "repair", as from `repair_results`, where there are repair rounds.
    """
    judged: list[JudgedRow] = []
    ended = [[bool(prediction.ended) for prediction in predictions] for predictions in predicted.predictions]
    results: dict[str, Any] = {"ended": clustered_wilson(list(map(sum, ended)), list(map(len, ended)))}
    if validator is not None:
        with activity.shown("judging"):
            judged = judge_rows(predicted.rows, predicted.predictions, registry.plan_scoring(reward, validator))
        results = split_results(judged, edges) | {"validator": validator}
    if predicted.tokens is not None:
        results["mean_tokens"] = fmean(map(fmean, predicted.tokens))
    if predicted.repairs is not None:
        results["repair"] = repair_results(predicted.repairs)
    if predicted.scores is not None:
        results |= _reward_results(predicted.scores)
    return results, judged


def samples_of(predicted: Predictions, judged: Sequence[JudgedRow], most: int = 5) -> list[dict[str, Any]]:
    """Return the first rows of a split with their first prediction: id, prompt, completion, score, verdict."""
    samples = []
    for i, (row, predictions) in enumerate(zip(predicted.rows[:most], predicted.predictions, strict=False)):
        sample = {"id": row["id"], "prompt": row["prompt"], "completion": predictions[0].text}
        if judged:
            outcome = judged[i].predictions[0].outcome
            sample |= {"verdict": plan.describe(outcome.verdict), "score": outcome.reward}
        if predicted.scores is not None:
            sample["score"] = predicted.scores[i][0]
        samples.append(sample)
    return samples


def _reward_results(scores: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    """Compute the mean over rows of their average score, with its interval; what has no score is left out."""
    known = [[value for value in values if value is not None] for values in scores]
    reward = mean_interval([fmean(values) for values in known if values])
    return {"mean_reward": reward["mean"], "reward": reward}


def eval_metrics(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the metrics that an evaluation adds to the record of its update, per domain where there are several."""
    rewards = {f"eval/{split}/mean_reward": result["mean_reward"] for split, result in results.items()}
    judged = {split: result for split, result in results.items() if "validity" in result}
    domains = {
        f"eval/{split}/{domain}/validity": cell["validity"]["rate"]
        for split, result in judged.items()
        if len(result["domains"]) > 1
        for domain, cell in result["domains"].items()
    }
    return (
        {f"eval/{split}/validity": result["validity"]["rate"] for split, result in judged.items()} | domains | rewards
    )
