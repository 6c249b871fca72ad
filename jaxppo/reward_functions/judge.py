"""From the completions of a batch to its scores: decoded, given to the reward functions, put into the batch."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jaxppo import data
from jaxppo.config import reward_name
from jaxppo.parallel.devices import DataParallel
from jaxppo.rewards import SAMPLE_COLUMNS, Completions, Rewards
from jaxppo.types import Batch


@dataclass(frozen=True, slots=True)
class Judge:
    """Decodes completions and has them scored, each process its own.

    Args:
        tokenizer: of the policy.
        end_ids: left out at the end of texts.
        parallel: devices that rollouts are on.
        rewards: the reward functions.
        num_generations: completions per prompt.
    """

    tokenizer: Any
    end_ids: Sequence[int]
    parallel: DataParallel
    rewards: Rewards
    num_generations: int

    def __call__(self, batch: Batch, gather: Callable[[Any], list[Any]]) -> None:
        """Fill in the texts of a batch, and what the reward functions give.

        Args:
            batch: with its completions on the host.
            gather: from a value of this process to those of all.
        """
        ids, mask = batch.completion_ids, batch.completion_mask
        assert ids is not None and mask is not None
        prompts, columns = batch.per_completion(self.num_generations)
        # Each process judges the rows of its own devices; then all of them have all scores.
        rows = self.parallel.local_rows(len(prompts))
        texts = data.decode(self.tokenizer, ids[rows], mask[rows], self.end_ids)
        token_ids = [row[real].tolist() for row, real in zip(ids[rows], mask[rows], strict=True)]
        local_columns = {name: column[rows] for name, column in columns.items()}
        scores = self.rewards(Completions(prompts[rows], texts, token_ids, local_columns), gather)
        batch.completions = list(chain.from_iterable(gather(texts)))
        batch.scores = scores.values
        batch.reward_metrics = scores.metrics
        batch.reward_columns = scores.extras
        batch.judged_s = time.monotonic()

    def samples(self, batch: Batch, step: int) -> list[dict[str, Any]]:
        """Return the rows of samples.jsonl of a batch that is judged; `step` counts from 1."""
        prompts, columns = batch.per_completion(self.num_generations)
        # In the order of SAMPLE_COLUMNS, which begin with the step.
        rows = zip(columns["id"], prompts, batch.completions, batch.scores, strict=True)
        samples = []
        for number, row in enumerate(rows):
            sample: dict[str, Any] = dict(zip(SAMPLE_COLUMNS, (step, *row), strict=True))
            for column, values in batch.reward_columns.items():
                sample[column] = values[number]
            samples.append(sample)
        return samples


def failed_samples(
    samples: Iterable[dict[str, Any]], reward_funcs: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the rows of samples.jsonl for which one of these functions failed or took too long."""
    # Columns that `Reward` adds where its function has failed.
    columns = [f"{reward_name(name)}_failed" for name in reward_funcs]

    def has_failed(sample: dict[str, Any]) -> bool:
        return any(sample.get(column) for column in columns)

    return list(filter(has_failed, samples))
