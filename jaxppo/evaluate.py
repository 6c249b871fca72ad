"""Evaluate a model's plans: validity, executability and reward on held-out problems, with intervals.

`python -m jaxppo.evaluate --model DIR` prints a table and writes `eval.json`.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import cli, data, hf, models, ops, plan_reward, reward_sources, rollout, run_folder
from jaxppo.config import DataConfig, EvalConfig, EvaluateConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config_sources import parse_cli
from jaxppo.console import Console
from jaxppo.families import ModelConfig
from jaxppo.intervals import wilson
from jaxppo.parallel import DataParallel
from jaxppo.rewards import Completions, Rewards
from jaxppo.types import Params

EVAL_FILE = "eval.json"


class Completion(NamedTuple):
    """One decoded completion."""

    text: str
    ended: bool
    ids: list[int]


class Evaluator:
    """Decodes and judges the plans of the evaluation splits; call it with the parameters of a language model.

    Args:
        model: configuration of the model.
        tokenizer: its tokenizer.
        parallel: devices.
        data_config: which splits.
        evaluation: batch size, temperature, validator.
        reward: how plans are scored.
        rewards: the functions that score completions, where there are others than the plan reward.
        sampling: stop token and most tokens of a completion; the rest comes from `evaluation`.
        seed: of the sampling, where the temperature is above 0.
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
    ):
        self._tokenizer, self.parallel, self._config, self._reward = tokenizer, parallel, evaluation, reward
        self._length, self._seed = sampling.response_length, seed
        self._rewards = None if reward.reward_funcs == ("plan",) else rewards
        self.validator = _validator(evaluation) if reward.judges_plans else None
        judges = None if self.validator is None else reward.reads_pddl_for(self.validator)
        self.rows = {split: data.load_split(data_config, split, judges) for split in data_config.eval_splits}
        self._encoded = {
            split: data.encode_prompts(tokenizer, rows, data_config.max_prompt_length)
            for split, rows in self.rows.items()
        }
        longest = max(len(ids) for encoded in self._encoded.values() for ids in encoded)
        models.check_length(model, longest + self._length, "longest prompt of eval_splits and response_length")
        self._prompt_length = data.bucket(longest)
        stop_id = sampling.stop_id(tokenizer.eos_token_id)
        program = partial(
            rollout.generate,
            model=model,
            stop_id=tokenizer.eos_token_id if stop_id is None else stop_id,  # a plan ends, however training samples
            pad_id=tokenizer.pad_token_id,
            temperature=evaluation.eval_temperature,
            top_k=evaluation.eval_top_k,
            top_p=evaluation.eval_top_p,
        )
        self._generate = parallel.map(program, row_axes=(None, 0, 0), out_axes=0)

    def __call__(self, params: Params) -> dict[str, dict[str, Any]]:
        """{split: results}: "ended" and "mean_reward", and where plans are judged "validity", "executability", ...

        Rates have a Wilson interval, the mean of other rewards than the plan reward one of twice its standard error.
        """
        return {split: self._evaluate(params, split) for split in self.rows}

    def _evaluate(self, params: Params, split: str) -> dict[str, Any]:
        completions, columns = self.complete(params, split), data.columns_of(self.rows[split])
        results = {} if self.validator is None else self._judge_plans(completions, columns, self.validator)
        if self._rewards is not None:
            results |= self._score(self._rewards, completions, split)
        return results | {"ended": wilson(sum(completion.ended for completion in completions), len(completions))}

    def _judge_plans(
        self, completions: Sequence[Completion], columns: dict[str, list[Any]], validator: str
    ) -> dict[str, Any]:
        outcomes = plan_reward.judge_plans(
            [completion.text for completion in completions],
            reward_sources.plan_scoring(self._reward, validator),
            **{name: columns[name] for name in ("domain_pddl", "problem_pddl", "reference_plan", "prompt_style")},
        )
        count, metrics = len(outcomes), plan_reward.plan_metrics(outcomes)
        return {
            "validity": wilson(sum(o.verdict.valid for o in outcomes), count),
            "executability": wilson(sum(o.verdict.executable for o in outcomes), count),
            "mean_reward": metrics["mean"],
            "lccs": metrics["lccs"],
            "validator_failed": metrics["validator_failed"],
            "validator": validator,
        }

    def _score(self, rewards: Rewards, completions: Sequence[Completion], split: str) -> dict[str, Any]:
        rows = self.rows[split]
        columns = data.columns_of(rows) | {"prompt_ids": self._encoded[split]}
        texts, ids = [c.text for c in completions], [c.ids for c in completions]
        values = rewards(Completions([row["prompt"] for row in rows], texts, ids, columns)).values
        numbers = [value for value in values if value is not None]
        error = 2.0 * stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
        mean = fmean(numbers)
        interval = {"mean": mean, "low": mean - error, "high": mean + error, "n": len(numbers)}
        return {"mean_reward": mean, "reward": interval}

    def complete(self, params: Params, split: str) -> list[Completion]:
        """One completion per row of a split, in its order; longest prompts are decoded together."""
        encoded = self._encoded[split]
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        key = jax.random.fold_in(ops.purpose_key(self._seed, ops.Purpose.EVALUATION), list(self.rows).index(split))
        uniforms = np.asarray(ops.row_uniforms(key, len(encoded), self._length))
        completions: dict[int, Completion] = {}
        for rows in data.chunks(order, self._batch_size):
            done = self._complete_batch(params, [encoded[i] for i in rows], uniforms[rows])
            completions |= zip(rows, done, strict=True)
        return [completions[i] for i in range(len(encoded))]

    @property
    def _batch_size(self) -> int:
        return data.bucket(self._config.eval_batch_size, self.parallel.num_devices)

    def _complete_batch(self, params: Params, encoded: Sequence[list[int]], uniforms: np.ndarray) -> list[Completion]:
        """Decode up to a batch of prompts; a short last batch is filled up with copies of its first row."""
        missing = self._batch_size - len(encoded)
        filled = [*encoded, *[encoded[0]] * missing]
        prompts = data.pad_left(filled, self._prompt_length, self._tokenizer.pad_token_id)
        draws = np.concatenate([uniforms, np.repeat(uniforms[:1], missing, axis=0)])
        done = self._generate(params, *self.parallel.put((prompts, draws), 0))
        ids, mask = np.asarray(done.completion_ids), np.asarray(done.completion_mask)
        rows = zip(data.decode(self._tokenizer, ids, mask), np.asarray(done.ended), ids, mask, strict=True)
        return [Completion(text, bool(ended), row[real].tolist()) for text, ended, row, real in rows][: len(encoded)]


def _validator(evaluation: EvalConfig) -> str:
    """Who judges, after a try."""
    validator = evaluation.eval_validator or plan_reward.default_validator()
    plan_reward.check_validator(validator)
    return validator


def make_evaluator(
    config: TrainConfig | SFTConfig | EvaluateConfig,
    model: ModelConfig,
    tokenizer: Any,
    parallel: DataParallel,
    rewards: Rewards | None = None,
) -> Evaluator:
    """The evaluator that a command's configuration asks for."""
    if isinstance(config, TrainConfig):
        sampling = config.sampling
    else:
        stop_token_id = config.stop_token_id if isinstance(config, EvaluateConfig) else None
        sampling = SamplingConfig(response_length=config.response_length, stop_token_id=stop_token_id)
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
    )


def summary_line(split: str, result: dict[str, Any]) -> str:
    """One line about a split for the terminal."""
    if "validity" not in result:
        reward = result["reward"]
        return (
            f"{split}: mean reward {reward['mean']:.3f} [{reward['low']:.3f}, {reward['high']:.3f}] of {reward['n']}, "
            f"ended {result['ended']['rate']:.1%}"
        )
    v, e = result["validity"], result["executability"]
    return (
        f"{split}: valid {v['rate']:.1%} [{v['low']:.1%}, {v['high']:.1%}] of {v['n']} ({result['validator']}), "
        f"executable {e['rate']:.1%}, reward {result['mean_reward']:.3f}"
    )


def eval_metrics(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What an evaluation during training adds to the record of its update."""
    rewards = {f"eval/{split}/mean_reward": result["mean_reward"] for split, result in results.items()}
    judged = {split: result for split, result in results.items() if "validity" in result}
    return {f"eval/{split}/validity": result["validity"]["rate"] for split, result in judged.items()} | rewards


def print_results(console: Console, results: dict[str, dict[str, Any]]) -> None:
    """One line per split, and a warning where the validator failed."""
    for split, result in results.items():
        console.result(summary_line(split, result))
        if result.get("validator_failed"):
            console.warn(
                f"{split}: {result['validator_failed']:.1%} of the plans got no verdict and count as not valid"
            )


def evaluate(config: EvaluateConfig) -> Path:
    """Evaluate a model folder and write `eval.json`; returns the run folder."""
    console = Console(config.run.quiet)
    folder = run_folder.default_folder("evaluate", config.run)
    if run_folder.check(folder, config, config.run) and (folder / EVAL_FILE).exists():
        console.print(f"{folder} is finished: nothing to resume")
        return folder
    parallel = DataParallel(config.run.parallel)
    policy = hf.load_policy(config.model)
    model, tokenizer = models.computing_in(policy.config, config.dtype), policy.tokenizer
    rewards = reward_sources.make_rewards(
        config.reward,
        validator=config.evaluation.eval_validator or plan_reward.default_validator(),
        learned=reward_sources.learned_by(model, policy.params, tokenizer, parallel),
    )
    evaluator = make_evaluator(config, model, tokenizer, parallel, rewards)
    if config.run.dry_run:
        console.print(f"would evaluate {config.model} on {', '.join(evaluator.rows)} into {folder}")
        return folder
    run_folder.claim(folder, config, config.run)
    try:
        results = evaluator(parallel.put(policy.params))
    finally:
        rewards.close()
    run_folder.write_json(folder / EVAL_FILE, results)
    print_results(console, results)
    console.print(f"written to {folder / EVAL_FILE}")
    return folder


if __name__ == "__main__":
    cli.main(lambda: evaluate(parse_cli(EvaluateConfig, "evaluate")))
