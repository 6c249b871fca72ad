"""The benchmarks of speed: their arithmetic, their protocol, and small runs of the real commands."""

import importlib
import json
import subprocess
import sys

import pytest

from tests import ROOT

FOLDER = ROOT / "benchmarks"

CONTESTANT = """
import sys
sys.path.insert(0, {folder!r})
from turns import serve
print("noise on standard output")
serve(lambda turn: None)
"""


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of benchmarks/ as a script of that folder would."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(script: str, *args: str) -> list[dict]:
    command = [sys.executable, str(FOLDER / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_flops_of_a_model_counted_by_hand_and_of_the_workloads_of_the_peers(benchmark):
    workloads = benchmark("workloads")
    work = workloads.Workload(layers=1, hidden=4, heads=2, vocab=10, batch=3, prompt=5, response=2, epochs=1)

    def trunk(tokens, seen, read):  # keys and values of all; queries, output and MLP of those read; scores and mixing
        return 2 * tokens * 2 * 16 + 2 * read * 10 * 16 + 2 * 2 * read * seen * 4

    head = 2 * 4 * 10
    sampling = 3 * trunk(5, 5, 1) + 3 * trunk(1, 7, 1) + 2 * 3 * head
    scoring = 2 * 3 * trunk(7, 7, 2) + 3 * trunk(7, 7, 1) + 6 * head
    learning = 3 * (2 * 3 * trunk(7, 7, 2) + 6 * head)  # a backward pass is two forward passes
    assert workloads.flops(work) == sampling + scoring + learning
    assert round(workloads.flops(workloads.WORKLOADS["W1"]) / 1e9) == 568
    assert round(workloads.flops(workloads.WORKLOADS["W2"]) / 1e9) == 2551


def test_contestants_take_turns_and_one_that_fails_is_named(benchmark):
    command = [sys.executable, "-c", CONTESTANT.format(folder=str(FOLDER))]
    results = benchmark("turns").take_turns({"ours": command, "peer": command}, turns=3, warm_up=1)
    assert {name: len(each) for name, each in results.items()} == {"ours": 3, "peer": 3}
    for turn in (*results["ours"], *results["peer"]):
        assert turn["seconds"] >= 0 and turn["maxrss_mib"] > 0
    with pytest.raises(SystemExit, match=r"^peer ended with status 3 before it said READY$"):
        benchmark("turns").take_turns({"peer": [sys.executable, "-c", "raise SystemExit(3)"]}, turns=1, warm_up=0)


def test_compare_takes_the_median_of_the_ratios(benchmark):
    turn = lambda seconds, peak=7: {"seconds": seconds, "maxrss_mib": peak}  # noqa: E731
    results = {"ours": [turn(1.0), turn(2.0), turn(4.0, 9)], "peer": [turn(3.0), turn(2.0), turn(8.0)]}
    assert benchmark("turns").compare(results, "ours") == {
        "ours_s": 2.0,
        "ours_maxrss_mib": 9,
        "peer_s": 3.0,
        "peer_maxrss_mib": 7,
        "peer_over_ours": 2.0,
        "peer_over_ours_range": [1.0, 3.0],
    }


def test_accelerator_compares_with_the_peaks(benchmark):
    accelerator, workloads = benchmark("accelerator"), benchmark("workloads")
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


@pytest.mark.full
def test_attention_times_what_runs_here(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    lines = {line["form"]: line for line in run("attention.py", "--rows", "2", "--heads", "2", "--tokens", "20")}
    for form in ("plain", "blocks", "xla"):
        assert lines[form]["forward_ms"] > 0 and lines[form]["gradient_ms"] > 0
    assert "CPU" in lines["triton"]["forward_ms"] and "cuDNN" in lines["cudnn"]["gradient_ms"]


@pytest.mark.full
def test_logprobs_reports_memory_and_time():
    sizes = {"rows": 2, "tokens": 64, "vocab": 4096, "hidden": 32, "turns": 1}
    lines = run("logprobs.py", *(text for name, value in sizes.items() for text in (f"--{name}", str(value))))
    assert [line["case"] for line in lines] == ["forward", "gradient"]
    for line in lines:
        assert line["array_mib"] == 2.0
        assert line["naive_share"] >= 0.9
        assert line["naive_over_chunked"] > 0


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
    ],
)
def test_small_runs_measure_what_they_name(monkeypatch, script, flags, names):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    lines = run(script, *flags.split())
    for line in lines:
        assert all(line[name] > 0 for name in names.split())
    if script == "scaling.py":
        assert [line["quantity"] for line in lines] == ["batch", "response", "layers", "vocab"]
