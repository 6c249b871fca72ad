"""Programs for accelerators hold no array of all logits or of all attention scores, and multiply in bfloat16."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiling.test_aot import needs_gpu_compiler, needs_tpu_compiler
from tests.rl import wide_arrays

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    [pytest.param("tpu-v5e-4", marks=needs_tpu_compiler), pytest.param("gpu-h100x1", marks=needs_gpu_compiler)],
)
def test_no_program_holds_all_logits_or_scores_or_multiplies_in_float32(target):
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/rl/wide_arrays.py"), target],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name.split()[0] for name in found} == {"generate", "score", "update"}
    for name, program in found.items():
        assert program == {"logits": [], "scores": [], "wide_products": []}, name


def test_what_is_looked_for_is_found():
    text = """
  %a.1 = f32[128,512]{1,0} parameter(0)
  %b.2 = f32[512,128]{1,0} parameter(1)
  %c = bf16[512,128]{1,0} parameter(2)
  %product.3 = f32[128,128]{1,0} dot(%a.1, %b.2), lhs_contracting_dims={1}
  %half = f32[128,128]{1,0} dot(%a.1, %c), lhs_contracting_dims={1}
  %scores = bf16[16,2,256,256]{3,2,1,0} fusion(%a.1), kind=kLoop
  %fewer = bf16[16,2,24,256]{3,2,1,0} fusion(%a.1), kind=kLoop
  %logits = f32[384,20000]{1,0} fusion(%a.1), kind=kLoop
  %head = f32[128,20000]{1,0} fusion(%a.1), kind=kLoop
"""
    assert wide_arrays.look(text) == wide_arrays.Found(
        logits=["f32[384,20000]"], scores=["bf16[16,2,256,256]"], wide_products=["f32[128, 512] x f32[512, 128]"]
    )
