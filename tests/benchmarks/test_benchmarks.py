"""The benchmarks: arithmetic of what is published, and small runs of the real commands."""

import importlib
import json
import subprocess
import sys

import pytest

from tests import ROOT

FOLDER = ROOT / "benchmarks"


def run(script: str, *args: str) -> list[dict]:
    command = [sys.executable, str(FOLDER / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_accelerator_compares_with_the_peaks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # as in a script of that folder
    accelerator, workloads = (importlib.import_module(name) for name in ("accelerator", "workloads"))
    work = workloads.Workload(
        layers=1, hidden=4, heads=2, vocab=10, batch=3, prompt=5, response=2, epochs=1, dtype="bfloat16"
    )
    program = {"held_bytes": 100, "argument_bytes": 60, "output_bytes": 30, "alias_bytes": 20, "temp_bytes": 7}
    note = {"rollout_s": 0.5, "update_s": 2.0, "update_flop": 8e12, "prompts_flop": 1e11, "peak_bytes": 99}
    note["programs"] = {"generate": program, "update": program | {"temp_bytes": 9}}
    results = {
        "jaxppo": [{"seconds": 4.0, "maxrss_mib": 1}] * 2,
        "trl": [{"seconds": 6.0, "maxrss_mib": 2}] * 2,
    }
    line = accelerator.summary("x", work, results, [note, note], accelerator.Peaks(flops=16e12, bandwidth=1e6))
    # Of each of 2 steps the weights, 12 x 16 and 4 x 10, and per row 2 x 4 numbers for each of 5, then 6 tokens seen.
    read = 2 * (2 * (192 + 40) + 3 * 8 * 11)
    assert line["decode_limit_tokens_per_s"] == pytest.approx(6 / (1e11 / 16e12 + read / 1e6), abs=0.05)
    assert (line["update_tflop_per_s"], line["mfu_update"], line["decode_tokens_per_s"]) == (4, 0.25, 12)
    assert (line["s_per_update"], line["trl_over_jaxppo"]) == (4, 1.5)
    assert (line["peak_bytes"], line["compiler_peak_bytes"]) == (99, 119)
    unknown = accelerator.summary("x", work, results, [note], accelerator.peaks("cpu"))
    assert unknown["mfu_update"] is unknown["decode_limit_tokens_per_s"] is None
    assert accelerator.peaks("NVIDIA H200") == accelerator.Peaks(flops=989.5e12, bandwidth=4.8e12)


UPDATE = "--workload tiny --updates 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "names"),
    [
        ("ppo_update.py", f"{UPDATE} --vs-products --response 6 --layers 1", "s_per_update maxrss_mib products_s"),
        (
            "accelerator.py",
            f"{UPDATE} --peak-tflops 100 --bandwidth-gb 1000 --vs-trl --parts 2",
            "mfu_update decode_tokens_per_s decode_limit_tokens_per_s compiler_peak_bytes trl_over_jaxppo",
        ),
        ("decode.py", "--workload tiny --turns 1", "jaxppo_tokens_per_s hf_tokens_per_s memory_limit_tokens_per_s"),
        ("compile.py", "--preset tiny --turns 1", "cold_imported_s cold_loaded_s cold_updated_s warm_updated_s"),
        ("scaling.py", "--updates 1", "gflop_factor"),
        ("logprobs.py", "--rows 2 --tokens 64 --vocab 4096 --hidden 32 --turns 1", "naive_share naive_over_chunked"),
        ("attention.py", "--rows 2 --heads 2 --tokens 20", ""),
        ("rewards.py", "--completions 6 --slow_completions 1 --rounds 2 --domains logistics", ""),
    ],
)
def test_small_runs_measure_what_they_name(monkeypatch, script, flags, names):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    lines = run(script, *flags.split())
    for line in lines:
        assert all(line[name] > 0 for name in names.split())
    if script == "scaling.py":
        assert [line["quantity"] for line in lines] == ["batch", "response", "layers", "vocab"]
