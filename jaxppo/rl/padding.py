"""Leaving out columns of padding: sequences sorted by length, and each part of them cut to one of few lengths.

A compiled program has one shape, so that every row of a batch is as long as the longest. Sorted by length, the rows of
a micro-batch are of similar length, and `lax.switch` takes the program that was compiled for the shortest of a few
lengths that hold them. Each length is compiled, so there are few: they come from the quartiles of the prompts.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxppo.data import SEQUENCE_BUCKET, bucket
from jaxppo.nn import ModelConfig, map_in_chunks
from jaxppo.nn.kernels import TRITON_BLOCK
from jaxppo.parallel import partition, platform
from jaxppo.rl import ops
from jaxppo.types import Sequences

R = TypeVar("R")

WORTH_CUTTING = 7 / 8
"""A shorter length is compiled only if it is at most this share of the full one."""


def cut_lengths(full: int, length_gaps: Sequence[int]) -> list[int]:
    """List the lengths to compile for, rising, the full one last.

    Args:
        full: T, columns of the batch.
        length_gaps: from `data.length_gaps`.
    """
    # A quartile of the prompts gives a length that a quarter
    # of the parts will fit, whatever the completions do.
    shorter = {bucket(max(full - gap, 1), _multiple()) for gap in length_gaps}
    worth_cutting = [length for length in shorter if length <= WORTH_CUTTING * full]
    return [*sorted(worth_cutting), full]


def compiled_gaps(models: Sequence[ModelConfig], length_gaps: Sequence[int]) -> Sequence[int]:
    """Return those of `data.length_gaps` that are worth compiling for: all, or the median of the three.

    Every length compiles all layers of a model that is no loop, for a minute or so on a GPU.
    """
    return length_gaps[1:2] if any(model.is_unrolled for model in models) else length_gaps


def padded_length(models: Sequence[ModelConfig], longest_row: int, longest: int) -> int:
    """Return to how many tokens the sequences of a batch are padded: each such length compiles once.

    Args:
        models: what computes them.
        longest_row: tokens of the batch's longest row.
        longest: most tokens that a row of any batch can have.
    """
    length = bucket(longest_row, _multiple())
    # A GPU's kernels take whole tiles: else every layer pads what it gives them. Past
    # its positions a model computes nothing.
    limits = [model.max_length for model in models if model.max_length is not None]
    is_tiled = platform.current().name == "gpu" and length <= min(limits, default=length)
    return length if is_tiled else min(length, longest)


def _multiple() -> int:
    return TRITON_BLOCK if platform.current().name == "gpu" else SEQUENCE_BUCKET


def has_one_length(
    models: Sequence[ModelConfig], length_gaps: Sequence[int], longest: int, parts: int
) -> bool:
    """Return whether every batch is padded to the longest possible row, and its parts are then cut to few lengths.

    Batches then bring no new lengths to compile for. This is for wide models on a CPU, whose layers are compiled one by
    one; the parts are micro-batches and the parts of a batch that is scored, the lengths those of `cut_lengths`.

    Args:
        models: what is learned.
        length_gaps: from `data.length_gaps`.
        longest: tokens of the longest row.
        parts: into how many a batch of such rows is cut.
    """
    compiles_slowly = any(
        model.wide and not (model.scans_layers or model.is_unrolled) for model in models
    )
    if not compiles_slowly or not length_gaps:
        return False
    # The longest quarter of the rows is hardly cut. So this pays only if even the shortest of them
    # has at least about three quarters of the longest row's tokens.
    return min(length_gaps) <= longest // 4 and parts > 1


def cut_to_longest(function: Callable[[Any], R], batch: Any, length_gaps: Sequence[int]) -> R:
    """Compute `function(batch)`, its sequences cut to the shortest of `cut_lengths` that holds all their tokens.

    Args:
        function: of the batch; its result has the same shapes whatever the sequences' number of columns, and does not
            depend on columns that are padding in every row.
        batch: a tree with one `Sequences` in it, if `length_gaps` names anything.
        length_gaps: from `data.length_gaps`; empty: nothing is cut.
    """
    if not length_gaps:
        return function(batch)

    def is_sequences(node: Any) -> bool:
        return isinstance(node, Sequences)

    (sequences,) = filter(is_sequences, jax.tree.leaves(batch, is_leaf=is_sequences))
    lengths = cut_lengths(sequences.input_ids.shape[1], length_gaps)
    if len(lengths) == 1:
        return function(batch)

    def cut_at(length: int) -> Callable[[Any], R]:
        def cut(node: Any) -> Any:
            if not is_sequences(node):
                return node
            return node._replace(input_ids=node.input_ids[:, :length])

        def function_of_cut(batch: Any) -> R:
            return function(jax.tree.map(cut, batch, is_leaf=is_sequences))

        return function_of_cut

    # The longest row on all devices that compute together decides: they must take the same branch.
    longest = partition.largest(jnp.max(ops.real_lengths(sequences)))
    branch = jnp.searchsorted(jnp.array(lengths), longest)
    branches = [cut_at(length) for length in lengths]
    return jax.lax.switch(branch, branches, batch)


def in_cut_parts(
    function: Callable[[Sequences], R],
    sequences: Sequences,
    rows_at_once: int | None,
    length_gaps: Sequence[int],
) -> R:
    """Compute `function(sequences)` in parts of rows of similar length, each cut as by `cut_to_longest`.

    Args:
        function: as for `cut_to_longest`, of rows that do not depend on each other; its results have an axis of rows
            first.
        sequences: [B, T].
        rows_at_once: see `map_in_chunks`.
        length_gaps: see `cut_to_longest`.
    """
    # Rows of similar length share a part, so that each part
    # can be cut; afterwards they go back to their places.
    order = jnp.argsort(ops.real_lengths(sequences))

    def cut(part: Sequences) -> R:
        return cut_to_longest(function, part, length_gaps)

    by_length = jax.tree.map(lambda x: x[order], sequences)
    results = map_in_chunks(cut, by_length, rows_at_once)
    original_order = jnp.argsort(order)
    return jax.tree.map(lambda x: x[original_order], results)
