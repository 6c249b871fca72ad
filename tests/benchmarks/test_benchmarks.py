"""The benchmarks of speed: their arithmetic, their protocol, and small runs of the real commands."""

import importlib
import json
import subprocess
import sys

import pytest

from tests import ROOT

FOLDER = ROOT / "benchmarks"

CONTESTANT = """
import sys, time
sys.path.insert(0, {folder!r})
from turns import serve
print("noise on standard output")
serve(lambda turn: time.sleep({seconds}))
"""


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of benchmarks/ as a script there would."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(script: str, *args: str) -> list[dict]:
    command = [sys.executable, str(FOLDER / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_flops_of_a_model_counted_by_hand(benchmark):
    workloads = benchmark("workloads")
    work = workloads.Workload(layers=1, hidden=4, heads=2, vocab=10, batch=3, prompt=5, response=2, epochs=1)

    def trunk(tokens, seen, read):  # keys and values of all; queries, output and MLP of those read; scores and mixing
        return 2 * tokens * 2 * 16 + 2 * read * 10 * 16 + 2 * 2 * read * seen * 4

    head = 2 * 4 * 10
    sampling = 3 * trunk(5, 5, 1) + 3 * trunk(1, 7, 1) + 2 * 3 * head
    scoring = 2 * 3 * trunk(7, 7, 2) + 3 * trunk(7, 7, 1) + 6 * head
    learning = 3 * (2 * 3 * trunk(7, 7, 2) + 6 * head)  # a backward pass is two forward passes
    assert workloads.flops(work) == sampling + scoring + learning


def test_workloads_are_those_of_the_peers(benchmark):
    workloads = benchmark("workloads")
    assert round(workloads.flops(workloads.WORKLOADS["W1"]) / 1e9) == 568
    assert round(workloads.flops(workloads.WORKLOADS["W2"]) / 1e9) == 2551


def test_contestants_take_turns_and_are_compared(benchmark):
    turns = benchmark("turns")
    commands = {
        name: [sys.executable, "-c", CONTESTANT.format(folder=str(FOLDER), seconds=seconds)]
        for name, seconds in {"ours": 0.02, "peer": 0.2}.items()
    }
    results = turns.take_turns(commands, turns=3, warm_up=1)
    assert {name: len(each) for name, each in results.items()} == {"ours": 3, "peer": 3}
    compared = turns.compare(results, "ours")
    assert compared["ours_s"] >= 0.02 and compared["peer_s"] >= 0.2
    assert 1 < compared["peer_over_ours"] <= 10.001


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


def test_a_contestant_that_fails_is_named(benchmark):
    turns = benchmark("turns")
    with pytest.raises(SystemExit, match=r"^peer ended with status 3 before it said READY$"):
        turns.take_turns({"peer": [sys.executable, "-c", "raise SystemExit(3)"]}, turns=1, warm_up=0)


@pytest.mark.slow
def test_ppo_update_reports_the_agreed_fields():
    (line,) = run(
        "ppo_update.py", "--workload", "tiny", "--updates", "1", "--vs-products", "--response", "6", "--layers", "1"
    )
    assert (line["workload"], line["updates"], line["response"]) == ("tiny", 1, 6)
    assert line["s_per_update"] > 0
    assert line["samples_per_s"] == pytest.approx(8 / line["s_per_update"], rel=0.01)
    assert 100 < line["maxrss_mib"] < 4000
    assert line["products_over_jaxppo"] == pytest.approx(line["products_s"] / line["s_per_update"], rel=0.1)


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


@pytest.mark.slow
def test_accelerator_runs_where_there_is_none(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    flags = ("--peak-tflops", "100", "--bandwidth-gb", "1000", "--vs-trl", "--parts", "2")
    (line,) = run("accelerator.py", "--workload", "tiny", "--updates", "1", *flags)
    assert 0 < line["mfu_update"] < 1 and 0 < line["decode_tokens_per_s"] < line["decode_limit_tokens_per_s"]
    assert set(line["programs"]) == {"generate", "update"} and line["peak_bytes"] is None
    for program in line["programs"].values():
        assert line["compiler_peak_bytes"] > program["held_bytes"] >= program["argument_bytes"] > 0
        assert program["temp_bytes"] > 0
    # Between the two only a batch is added; in the first update the reference shares the policy's weights.
    assert line["programs"]["update"]["held_bytes"] < 1.1 * line["programs"]["generate"]["held_bytes"]
    assert line["trl_over_jaxppo"] > 0 and line["device"] == "cpu"


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


@pytest.mark.slow
def test_decode_beside_generate():
    (line,) = run("decode.py", "--workload", "tiny", "--turns", "1")
    assert line["jaxppo_tokens_per_s"] > 0 and line["hf_tokens_per_s"] > 0
    assert line["memory_limit_tokens_per_s"] > line["jaxppo_tokens_per_s"]


@pytest.mark.slow
def test_a_warm_start_compiles_less():
    (line,) = run("compile.py", "--preset", "tiny", "--turns", "1")
    assert line["warm_updated_s"] < line["cold_updated_s"]
    assert line["cold_imported_s"] < line["cold_loaded_s"] < line["cold_updated_s"]


@pytest.mark.slow
def test_scaling_measures_each_quantity(tmp_path):
    lines = run("scaling.py", "--updates", "1", "--plot", str(tmp_path / "scaling.png"))
    assert [line["quantity"] for line in lines] == ["batch", "response", "layers", "vocab"]
    assert all(line["gflop_factor"] > 1 for line in lines)
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
