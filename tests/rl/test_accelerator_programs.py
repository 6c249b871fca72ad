"""What compiled programs hold: one cache, nothing of the size of all logits or scores, and no products in float32."""

import json
import os
import subprocess
import sys

import jax
import pytest

from tests import ROOT
from tests.profiling.test_aot import needs_gpu_compiler, needs_tpu_compiler
from tests.rl.accelerator_programs import LENGTH, MANY_ROWS, MODEL, ROWS, Found, Held, compiled, held, look


def check_arrays(program: Held, rows: int = ROWS) -> None:
    """One cache in every loop that carries it, and logits of one token of each row at most."""
    each = 2 * MODEL.num_hidden_layers
    assert program.caches and all(count == each for count in program.caches)
    assert program.widest <= max(rows, MODEL.hidden_size) * MODEL.vocab_size < rows * LENGTH * MODEL.vocab_size


def test_decoding_writes_into_its_one_cache_and_reads_prompts_in_parts():
    """By default on accelerators; all prompts at once, as on the CPU, take more."""
    part, whole = (held(compiled(jax.devices()[0], name)) for name in ("gpu", "cpu"))
    check_arrays(part)
    check_arrays(whole)
    assert (len(part.caches), len(whole.caches)) == (2, 1)  # to read the prompts, and to decode all rows
    assert part.copied == whole.copied == []
    assert part.temporaries <= 1.2 * (part.cache + part.weights)
    assert whole.temporaries > 2 * (whole.cache + whole.weights)


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    [pytest.param("tpu-v5e-4", marks=needs_tpu_compiler), pytest.param("gpu-h100x1", marks=needs_gpu_compiler)],
)
def test_programs_for_accelerators_hold_no_wide_arrays_and_one_cache(target):
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, str(ROOT / "tests/rl/accelerator_programs.py"), target]
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if target.startswith("tpu"):
        program = Held(**found.pop("decoding"))
        check_arrays(program, MANY_ROWS)
        assert program.temporaries <= 1.15 * (program.cache + program.weights)
    assert {*found} == {"generate", "score", "update"}
    for name, stage in found.items():
        assert stage == {"logits": [], "scores": [], "wide_products": []}, name


def test_what_is_looked_for_is_found():
    text = """
  %a.1 = f32[128,512]{1,0} parameter(0)
  %b.2 = f32[512,128]{1,0} parameter(1)
  %c = bf16[512,128]{1,0} parameter(2)
  %product.3 = f32[128,128]{1,0} dot(%a.1, %b.2), lhs_contracting_dims={1}
  %half = f32[128,128]{1,0} dot(%a.1, %c), lhs_contracting_dims={1}
  %scores = bf16[16,2,256,256]{3,2,1,0} fusion(%a.1), kind=kLoop
  %fewer = bf16[16,2,24,256]{3,2,1,0} fusion(%a.1), kind=kLoop
  %logits = f32[384,10000]{1,0} fusion(%a.1), kind=kLoop
  %head = f32[128,10000]{1,0} fusion(%a.1), kind=kLoop
"""
    assert look(text) == Found(
        logits=["f32[384,10000]"], scores=["bf16[16,2,256,256]"], wide_products=["f32[128, 512] x f32[512, 128]"]
    )
