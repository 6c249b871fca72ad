"""Solved examples before a prompt: rows of split `train` of the same data, chosen by `data_seed` and the row's id."""

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxppo.config import DataConfig, parse_sizes
from jaxppo.data.chats import Row, is_chat, last_user_turn, turns_of
from jaxppo.data.rows import check_same, load_split
from jaxppo.errors import DataError
from jaxppo.planning import prompts

SPLIT = "train"
MAX_ROWS_PER_SIZE = 200
"""Built-in problems of a size that examples are drawn from: the first ones of the split, built in a second, where the
whole split takes most of a minute."""

_SHARED = ("domain", "prompt_style")
"""Columns that a row shares with its examples, where it has them."""

Key = tuple[str, ...]


class Examples(NamedTuple):
    """Chooses the examples of a row.

    Attributes:
        n_shots: examples for each row.
        seed: of the choice.
        pool: rows with a completion, no two with the same prompt, by what they share with a row.
    """

    n_shots: int
    seed: int
    pool: Mapping[Key, Sequence[Row]]

    def draw(self, row: Row) -> list[Row]:
        """Return the examples of a row: other problems, always the same for this seed, this id and this pool.

        Raises:
            DataError: there are too few.
        """
        pool = self.pool.get(_key(row), ())
        # One more than is shown, as one of them may be the row itself.
        rng = random.Random(f"{self.seed}/{row['id']}")
        candidates = rng.sample(pool, min(self.n_shots + 1, len(pool)))
        problem = _problem(row)
        examples = [example for example in candidates if _problem(example) != problem][
            : self.n_shots
        ]
        if len(examples) < self.n_shots:
            shared = ", ".join(f"{name} {row[name]}" for name in _SHARED if name in row)
            if shared:
                shared = f" of {shared}"
            raise DataError(
                f"n_shots: expected {self.n_shots} other solved rows{shared} in split {SPLIT} for row {row['id']}, got "
                f"{len(examples)}"
            )
        return examples


def load_examples(config: DataConfig) -> Examples | None:
    """Read what examples are drawn from; None where `n_shots` is 0.

    Raises:
        DataError: the data have no split `train` with completions.
        ConfigError: another process has read other rows.
    """
    if config.n_shots == 0:
        return None
    # The first problems of a size do not depend on how many are built after them.
    if config.dataset == "blocksworld":
        sizes = parse_sizes(config.part("sizes", SPLIT) or "")
        fewer = ",".join(f"{n}:{min(count, MAX_ROWS_PER_SIZE)}" for n, count in sizes.items())
        config = dataclasses.replace(config, sizes=(*config.sizes, f"{SPLIT}={fewer}"))
    try:
        rows = load_split(config, SPLIT, None, {"prompt": str, "completion": str})
    except DataError as error:
        raise DataError(
            f"n_shots: expected solved rows in split {SPLIT} for examples, got: {error}"
        ) from error
    check_same(config.dataset, SPLIT, rows)
    # A problem that is in the data twice would be shown twice, or beside its own answer.
    rows_by_problem: dict[Key, dict[str, Row]] = {}
    for row in rows:
        rows_by_problem.setdefault(_key(row), {}).setdefault(_problem(row), row)
    pool = {key: list(group.values()) for key, group in rows_by_problem.items()}
    return Examples(config.n_shots, config.data_seed, pool)


def _problem(row: Row) -> str:
    """Return what tells problems apart: of a chat all turns, whatever the user says last."""
    return json.dumps(turns_of(row), sort_keys=True, default=str)


def _key(row: Row) -> Key:
    return tuple(str(row.get(name)) for name in _SHARED)


def shown_after(row: Row, example: Row) -> Row:
    """Return a row as it is written after an example: without the domain, where the example has shown the same one."""
    text = prompts.prompt_after(example["prompt"], row["prompt"], str(row.get("prompt_style")))
    shown = row | {"prompt": text}
    if is_chat(row):
        # Copies: the turns are those of the row, which is shown by itself elsewhere.
        turns = list(turns_of(row))
        question = last_user_turn(turns)
        assert question is not None  # a chat without a turn of the user is not read
        turns[question] = turns[question] | {"content": text}
        shown["messages"] = turns
    return shown
