"""The completions of a batch on the host, and their scores: between a rollout and what is learned from it."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxppo import data
from jaxppo.parallel.devices import DataParallel
from jaxppo.rewards import Completions, Rewards, Scores
from jaxppo.types import Rollout


class Answers(NamedTuple):
    """The completions of a batch, and those of this process for the reward functions."""

    prompts: list[str]  # [B] texts
    columns: dict[str, list[Any]]
    ids: np.ndarray  # [B, C]
    mask: np.ndarray  # [B, C]
    own: Completions


class Judged(NamedTuple):
    """The completions of a batch with their scores."""

    prompts: list[str]  # [B] texts
    columns: dict[str, list[Any]]
    ids: np.ndarray  # [B, C]
    mask: np.ndarray  # [B, C]
    texts: list[str]
    scores: Scores
    at: float  # in seconds of `time.monotonic`

    def values(self) -> np.ndarray:
        """Return the scores as an array [B]; a completion without one has NaN."""
        return np.array(self.scores.values, np.float32)

    def samples(self, step: int) -> list[dict[str, Any]]:
        """Return the rows of samples.jsonl."""
        rows = zip(self.columns["id"], self.prompts, self.texts, self.scores.values, strict=True)
        return [
            {"step": step, "id": name, "prompt": prompt, "completion": text, "score": value}
            | {column: values[row] for column, values in self.scores.extras.items()}
            for row, (name, prompt, text, value) in enumerate(rows)
        ]


def failed_samples(samples: Iterable[dict[str, Any]], reward_funcs: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of samples.jsonl for which one of these functions failed or took too long."""
    columns = [f"{name.rpartition(':')[2]}_failed" for name in reward_funcs]
    return [sample for sample in samples if any(sample.get(column) for column in columns)]


class Judge:
    """Decodes completions and has them scored, each process its own.

    Args:
        tokenizer: of the policy.
        end_ids: left out at the end of texts.
        parallel: devices that rollouts are on.
        rewards: the reward functions.
        num_generations: completions per prompt.
    """

    def __init__(
        self, tokenizer: Any, end_ids: Sequence[int], parallel: DataParallel, rewards: Rewards, num_generations: int
    ):
        self._tokenizer, self._end_ids, self._parallel = tokenizer, end_ids, parallel
        self._rewards, self._num_generations = rewards, num_generations

    def answers(self, batch: data.Batch, rollout: Rollout) -> Answers:
        """Fetch and decode the completions of a batch; waits for them."""
        prompts, columns = batch.per_completion(self._num_generations)
        ids, mask = self._parallel.to_host((rollout.completion_ids, rollout.completion_mask))
        rows = self._parallel.local_rows(len(prompts))
        texts = data.decode(self._tokenizer, ids[rows], mask[rows], self._end_ids)
        id_lists = [row[real].tolist() for row, real in zip(ids[rows], mask[rows], strict=True)]
        own_columns = {name: column[rows] for name, column in columns.items()}
        return Answers(prompts, columns, ids, mask, Completions(prompts[rows], texts, id_lists, own_columns))

    def __call__(self, answers: Answers, gather: Callable[[Any], list[Any]]) -> Judged:
        """Compute the scores of a batch.

        Args:
            answers: its completions.
            gather: from a value of this process to those of all.
        """
        scores = self._rewards(answers.own, gather)
        texts = [text for of_process in gather(answers.own.texts) for text in of_process]
        return Judged(answers.prompts, answers.columns, answers.ids, answers.mask, texts, scores, time.monotonic())

    def token_scores(self, judged: Judged) -> np.ndarray | None:
        """Return the parts of scores at their tokens, [B, C], NaN at others; None where all scores are of a whole."""
        parts = judged.scores.parts
        if parts is None:
            return None
        return data.token_scores(self._tokenizer, parts, judged.ids, judged.mask, self._end_ids, np.nan)
