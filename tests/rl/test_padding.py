"""Micro-batches cut to the length of their longest sequence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo import data
from jaxppo.nn import Computation
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.nn.gpt_neox import GPTNeoXConfig
from jaxppo.parallel import platform
from jaxppo.rl import ops, padding
from jaxppo.types import Sequences


def sequences_of(prompt_lengths, completion_lengths, columns):
    """Sequences of these lengths; ids are their column numbers."""
    completions = np.array(completion_lengths)
    mask = np.arange(completions.max()) < completions[:, None]
    ids = jnp.tile(jnp.arange(columns), (len(completions), 1))
    return Sequences(ids, jnp.array(prompt_lengths), jnp.zeros(mask.shape, jnp.int32), jnp.asarray(mask))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([128, 64, 80, 112, 96], (48, 32, 16)), ([7], (0, 0, 0)), ([5, 5, 9, 5], (4, 4, 0)), ([1, 2], (0, 0, 0))],
)
def test_length_gaps_are_those_of_the_quartiles(lengths, expected):
    assert data.length_gaps(lengths) == expected


@pytest.mark.parametrize(
    ("full", "length_gaps", "expected"),
    [
        (224, (48, 32, 16), [192, 224]),  # 176 and 192 share a bucket; 208 rounds up to all
        (117, (12, 8, 4), [117]),
        (512, (300, 200, 100), [224, 320, 416, 512]),
        (512, (300, 200, 60), [224, 320, 512]),  # 480 is hardly shorter
        (64, (100, 0, 0), [32, 64]),  # a batch of short prompts
        (64, (), [64]),
    ],
)
def test_cut_lengths_are_few_and_worth_it(full, length_gaps, expected):
    assert padding.cut_lengths(full, length_gaps) == expected


@pytest.mark.parametrize(("longest", "columns"), [(1, 32), (32, 32), (33, 64), (65, 100)])
def test_sequences_are_cut_to_the_shortest_length_that_holds_them(longest, columns):
    sequences = sequences_of([1, longest - longest // 2], [0, longest // 2], 100)
    batch = ({"rows": sequences, "other": jnp.ones((2, 100))}, jnp.ones((2, 100)))

    def last_column(batch):
        assert batch[0]["other"].shape == batch[1].shape == (2, 100)
        return jnp.max(batch[0]["rows"].input_ids)

    assert np.max(ops.real_lengths(sequences)) == longest
    cut = jax.jit(lambda batch: padding.cut_to_longest(last_column, batch, (80, 50, 0)))
    assert cut(batch) == columns - 1


def test_nothing_is_compiled_twice_where_nothing_can_be_cut():
    traced = []

    def count(batch):
        traced.append(batch)
        return jnp.float32(0)

    padding.cut_to_longest(count, sequences_of([3], [4], 100), (12, 8, 4))
    padding.cut_to_longest(count, {"no": jnp.zeros(3)}, ())
    assert len(traced) == 2


SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
ROTARY, GPT2 = GPTNeoXConfig(**SIZES), GPT2Config(**SIZES, max_position_embeddings=310)


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [("cpu", ROTARY, 310), ("tpu", ROTARY, 310), ("gpu", ROTARY, 320), ("gpu", GPT2, 310)],
)
def test_sequences_are_padded_to_tiles_on_a_gpu_but_not_past_the_positions_of_a_model(name, model, expected):
    with platform.compiling_for(platform.Platform(name, None)):
        assert padding.padded_length([model], 290, 310) == expected
        assert padding.padded_length([model], 250, 310) == 256


def test_layers_that_are_compiled_one_by_one_for_a_gpu_are_compiled_for_two_lengths():
    accelerated = dataclasses.replace(ROTARY, computation=Computation(accelerated=True, attention="triton"))
    assert padding.compiled_gaps([ROTARY], (48, 32, 16)) == (48, 32, 16)
    assert padding.compiled_gaps([accelerated], (48, 32, 16)) == (32,)
    assert padding.compiled_gaps([accelerated], ()) == ()
