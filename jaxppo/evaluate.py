"""Evaluate a model's plans: validity, executability and reward on held-out problems, with intervals.

`python -m jaxppo.evaluate --model DIR` prints a table and writes `eval.json`.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxppo import cli, data, hf, models, ops, rewards, rollout, run_folder
from jaxppo.config import DataConfig, EvalConfig, EvaluateConfig, RewardConfig, SamplingConfig, SFTConfig, TrainConfig
from jaxppo.config_sources import parse_cli
from jaxppo.console import Console
from jaxppo.families import ModelConfig
from jaxppo.parallel import DataParallel
from jaxppo.types import Params

EVAL_FILE = "eval.json"


class Completion(NamedTuple):
    """One decoded completion."""

    text: str
    ended: bool


def wilson(successes: int, n: int, z: float = 1.959964) -> dict[str, float]:
    """A rate with its Wilson score interval (95 % by default).

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), p = successes / n.

    Returns:
        {"rate", "low", "high", "n"}; the interval of n = 0 is [0, 1].

    Source: Wilson 1927; Brown, Cai and DasGupta 2001.
    """
    if n == 0:
        return {"rate": 0.0, "low": 0.0, "high": 1.0, "n": 0}
    p = successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return {"rate": p, "low": max(0.0, (centre - spread) / scale), "high": min(1.0, (centre + spread) / scale), "n": n}


class Evaluator:
    """Decodes and judges the plans of the evaluation splits; call it with the parameters of a language model.

    Args:
        model: configuration of the model.
        tokenizer: its tokenizer.
        parallel: devices.
        data_config: which splits.
        evaluation: batch size, temperature, validator.
        reward: how plans are scored.
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
    ):
        self._tokenizer, self.parallel, self._config, self._reward = tokenizer, parallel, evaluation, reward
        self._length, self._seed = sampling.response_length, seed
        self.validator = evaluation.eval_validator or rewards.default_validator()
        rewards.check_validator(self.validator)
        self.rows = {split: data.load_split(data_config, split, self.validator) for split in data_config.eval_splits}
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
        """{split: {"validity", "executability", "ended": rate with interval, "mean_reward", "lccs", ...}}."""
        return {split: self._evaluate(params, split) for split in self.rows}

    def _evaluate(self, params: Params, split: str) -> dict[str, Any]:
        completions = self.complete(params, split)
        columns = data.columns_of(self.rows[split])
        outcomes = rewards.judge_plans(
            [completion.text for completion in completions],
            domain_pddl=columns["domain_pddl"],
            problem_pddl=columns["problem_pddl"],
            reference_plan=columns["reference_plan"],
            prompt_style=columns["prompt_style"],
            validator=self.validator,
            partial=self._reward.partial,
            normalise_by=self._reward.normalise_by,
            val_timeout_s=self._reward.val_timeout_s,
        )
        count, metrics = len(outcomes), rewards.plan_metrics(outcomes)
        return {
            "validity": wilson(sum(o.verdict.valid for o in outcomes), count),
            "executability": wilson(sum(o.verdict.executable for o in outcomes), count),
            "ended": wilson(sum(completion.ended for completion in completions), count),
            "mean_reward": metrics["mean"],
            "lccs": metrics["lccs"],
            "validator_failed": metrics["validator_failed"],
            "validator": self.validator,
        }

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
        texts = data.decode(self._tokenizer, np.asarray(done.completion_ids), np.asarray(done.completion_mask))
        return [Completion(t, bool(e)) for t, e in zip(texts, np.asarray(done.ended), strict=True)][: len(encoded)]


def make_evaluator(
    config: TrainConfig | SFTConfig | EvaluateConfig, model: ModelConfig, tokenizer: Any, parallel: DataParallel
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
    )


def summary_line(split: str, result: dict[str, Any]) -> str:
    """One line about a split for the terminal."""
    v, e = result["validity"], result["executability"]
    return (
        f"{split}: valid {v['rate']:.1%} [{v['low']:.1%}, {v['high']:.1%}] of {v['n']} ({result['validator']}), "
        f"executable {e['rate']:.1%}, reward {result['mean_reward']:.3f}"
    )


def eval_metrics(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What an evaluation during training adds to the record of its update."""
    return {f"eval/{split}/validity": result["validity"]["rate"] for split, result in results.items()}


def print_results(console: Console, results: dict[str, dict[str, Any]]) -> None:
    """One line per split, and a warning where the validator failed."""
    for split, result in results.items():
        console.result(summary_line(split, result))
        if result["validator_failed"]:
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
    model, params, tokenizer, _ = hf.load_policy(config.model)
    evaluator = make_evaluator(config, models.computing_in(model, config.dtype), tokenizer, parallel)
    if config.run.dry_run:
        console.print(f"would evaluate {config.model} on {', '.join(evaluator.rows)} into {folder}")
        return folder
    run_folder.claim(folder, config, config.run)
    results = evaluator(parallel.put(params))
    run_folder.write_json(folder / EVAL_FILE, results)
    print_results(console, results)
    console.print(f"written to {folder / EVAL_FILE}")
    return folder


if __name__ == "__main__":
    cli.main(lambda: evaluate(parse_cli(EvaluateConfig, "evaluate")))
