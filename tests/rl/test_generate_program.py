"""What the compiled sampling program holds: one cache, and nothing of the size of all logits."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from tests import ROOT
from tests.rl.generate_program import LENGTH, MANY_ROWS, MODEL, ROWS, Held, compiled, held


def check_arrays(program: Held, rows: int = ROWS) -> None:
    """One cache in every loop that carries it, and logits of one token of each row at most."""
    each = 2 * MODEL.num_hidden_layers
    assert program.caches and all(count == each for count in program.caches)
    assert program.widest <= max(rows, MODEL.hidden_size) * MODEL.vocab_size < rows * LENGTH * MODEL.vocab_size


@pytest.mark.parametrize("drop_ended", [False, True])
def test_decoding_writes_into_its_one_cache(drop_ended):
    program = held(compiled(jax.devices()[0], "cpu", drop_ended=drop_ended, prompts_at_once=1))
    check_arrays(program)
    assert len(program.caches) == 2  # to read the prompts, and to decode all rows
    assert program.copied == []
    assert program.temporaries <= 1.15 * (program.cache + program.weights)


def test_reading_all_prompts_at_once_would_take_more():
    """What the limit above is about, and what the default on accelerators avoids: a part of all prompts."""
    whole, part = (held(compiled(jax.devices()[0], name)) for name in ("cpu", "gpu"))
    check_arrays(whole)
    assert whole.temporaries > 2 * (whole.cache + whole.weights)
    assert part.temporaries <= 1.15 * (part.cache + part.weights)


@pytest.mark.full
def test_a_tpu_holds_one_cache():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the compiler for TPUs, is not installed")
    env = os.environ | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "rl" / "generate_program.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    for program in (Held(**result) for result in json.loads(printed.splitlines()[-1])):
        check_arrays(program, MANY_ROWS)
        assert program.temporaries <= 1.15 * (program.cache + program.weights)
