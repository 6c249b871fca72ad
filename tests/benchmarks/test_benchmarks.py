"""The benchmarks: arithmetic of what is published, and small runs of the real commands."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from jaxppo.models import init_params
from jaxppo.profiling import flops
from tests import ROOT

FOLDER = ROOT / "benchmarks"


def run(script: str, *args: str) -> list[dict]:
    command = [sys.executable, str(FOLDER / script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))  # as in a script of that folder
    names = ("accelerator", "decode", "kernels", "workloads")
    return SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_accelerator_compares_with_the_peaks(modules):
    accelerator = modules.accelerator
    work = modules.workloads.Workload(
        layers=1, hidden=4, heads=2, vocab=10, batch=3, prompt=5, response=2, epochs=1, dtype="bfloat16"
    )
    program = {"held_bytes": 100, "argument_bytes": 60, "output_bytes": 30, "alias_bytes": 20, "temp_bytes": 7}
    turn = {"seconds": 4.0, "rollout_s": 0.5, "update_s": 2.0, "update_flop": 8e12, "prompts_flop": 1e11}
    turn |= {"peak_bytes": 99, "programs": {"generate": program, "update": program | {"temp_bytes": 9}}}
    results = {
        "jaxppo": accelerator.Result([turn | {"seconds": 50.0}, turn, turn | {"seconds": 6.0}], start_s=7.0),
        # Cut off: the last turn of jaxppo has no partner
        "trl": accelerator.Result([{"seconds": seconds, "peak_bytes": None} for seconds in (9.0, 6.0)], start_s=3.0),
    }
    case = accelerator.summary("x", work, results, accelerator.Peaks(flops=16e12, bandwidth=1e6), "out of time")
    ours, trl = case["contestants"]["jaxppo"], case["contestants"]["trl"]
    # Of each of 2 steps the weights, 12 x 16 and 4 x 10, and per row 2 x 4 numbers for each of 5, then 6 tokens seen.
    read = 2 * (2 * (192 + 40) + 3 * 8 * 11)
    assert ours["decode_limit_tokens_per_s"] == pytest.approx(6 / (1e11 / 16e12 + read / 1e6), abs=0.05)
    assert (ours["update_tflop_per_s"], ours["mfu_update"], ours["decode_tokens_per_s"]) == (4, 0.25, 12)
    assert (ours["s_per_update"], ours["s_per_update_all"], ours["first_update_s"]) == (5, [4, 6], 57)
    assert (trl["over_jaxppo"], trl["over_jaxppo_range"], trl["first_update_s"]) == (1.5, [1.5, 1.5], 12)
    assert (ours["peak_bytes"], ours["compiler_peak_bytes"]) == (99, 119)
    unknown = accelerator.summary("x", work, results, accelerator.peaks("cpu"), "done")["contestants"]["jaxppo"]
    assert unknown["mfu_update"] is unknown["decode_limit_tokens_per_s"] is None
    assert accelerator.peaks("NVIDIA H200") == accelerator.Peaks(flops=989.5e12, bandwidth=4.8e12)


def test_workloads_have_the_published_numbers_of_parameters(modules):
    published = {
        "pythia-160m": 162_322_944,
        "smollm2-135m": 134_515_008,
        "qwen3-0.6b": 596_049_920,
        "pythia-1b": 1_011_781_632,
    }
    assert list(published) == list(modules.accelerator.ALL)
    for name, parameters in published.items():
        work = dataclasses.replace(modules.workloads.WORKLOADS[name], response=1)
        config = modules.workloads.model_config(work)
        shapes = jax.eval_shape(lambda key, c=config: init_params(c, key, "lm"), jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters
        linear = flops.products(config, shapes)
        keys_and_values = 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
        read = linear.trunk + linear.head + work.batch * work.prompt * keys_and_values
        assert modules.decode.bytes_read(work) == 2 * read


def test_accelerator_gives_a_case_its_share_and_more_until_it_has_a_result(modules, monkeypatch):
    monkeypatch.setattr(modules.accelerator.time, "monotonic", lambda: 100.0)
    assert modules.accelerator.limits(700.0, 4) == (250, 400)
    assert modules.accelerator.limits(700.0, 1) == (700, 700)
    assert modules.accelerator.limits(None, 4) == (None, None)


CONTESTANT = f"""
import sys, time
sys.path.insert(0, {str(FOLDER)!r})
from turns import Clock
program = dict(held_bytes=1, output_bytes=1, alias_bytes=0, temp_bytes=1)
figures = dict(peak_bytes=1, rollout_s=1, update_s=1, update_flop=1, prompts_flop=1, programs=dict(update=program))
clock = Clock()
clock.ready()
for turn in range(100):
    if turn == 2 and "hangs" in sys.argv:
        time.sleep(60)
    if turn == 1 and "fails" in sys.argv:
        raise MemoryError("out of it")
    clock.done(**figures)
"""
"""Reports at once, but for what it is told."""

DRIVER = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import accelerator
accelerator.devices = lambda deadline: ("gpu", "NVIDIA H200", 1)
def case_of(name, work, *_):
    behaviours = dict(jaxppo="works", trl="hangs" if name == "pythia-160m" else "fails")
    return accelerator.Case(name, work, {{
        contestant: [sys.executable, "-c", {CONTESTANT!r}, behaviour] for contestant, behaviour in behaviours.items()
    }})
accelerator.case_of = case_of
accelerator.main()
"""


def start_driver(tmp_path, *args):
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", DRIVER, "--out", str(tmp_path / "out"), *args]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def contestants_of(driver):
    return Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()


def is_running(process):
    try:
        state = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and nobody has asked how


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("did not come to pass in 20 s")


def test_accelerator_keeps_turns_and_errors_and_ends_in_time(tmp_path):
    driver = start_driver(tmp_path, "--all", "--minutes", "0.2", "--updates", "3")
    printed, _ = driver.communicate(timeout=60)
    assert driver.returncode == 0
    report = json.loads((tmp_path / "out" / "accelerator.json").read_text())
    hung, *others = report["cases"]
    assert hung["state"] == "out of time"
    assert [len(hung["contestants"][name]["s_per_update_all"]) for name in ("jaxppo", "trl")] == [2, 1]
    assert hung["contestants"]["trl"]["over_jaxppo"] > 0
    for case in others:
        ours, trl = case["contestants"]["jaxppo"], case["contestants"]["trl"]
        assert (case["state"], len(ours["s_per_update_all"]), ours["error"]) == ("done", 3, None)
        assert (len(trl["s_warm_up"]), trl["over_jaxppo"]) == (1, None)
        assert trl["error"] == "MemoryError: out of it (trl ended with status 1 before it said TURN)"
    assert (tmp_path / "out" / "accelerator.md").read_text() == printed
    assert printed.count("MemoryError: out of it") == 3
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_accelerator_that_is_ended_leaves_its_turns_and_no_process(tmp_path, number, status):
    driver = start_driver(tmp_path, "--workload", "pythia-160m")
    written = tmp_path / "out" / "accelerator.json"

    def hangs():
        if not written.exists():
            return False
        (case,) = json.loads(written.read_text())["cases"]
        return len(case["contestants"]["jaxppo"]["s_per_update_all"]) == 2

    wait_for(hangs)
    contestants = contestants_of(driver)
    assert len(contestants) == 2
    driver.send_signal(number)
    driver.communicate(timeout=60)
    assert driver.returncode == status
    wait_for(lambda: not any(map(is_running, contestants)))
    assert hangs()


@pytest.mark.full
def test_accelerator_goes_on_without_trl(tmp_path):
    (tmp_path / "trl.py").write_text("raise ModuleNotFoundError(\"No module named 'trl'\")")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--workload", "tiny", "--vs-trl", "--updates", "1"]
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    subprocess.run([*command, "--out", str(tmp_path / "out")], env=environment, timeout=600, check=True)
    (case,) = json.loads((tmp_path / "out" / "accelerator.json").read_text())["cases"]
    assert case["contestants"]["trl"]["error"].startswith("ModuleNotFoundError: No module named 'trl' (")
    assert len(case["contestants"]["jaxppo"]["s_per_update_all"]) == 1


@pytest.mark.slow
def test_accelerator_measures_all_models_in_tiny_sizes(tmp_path):
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--all", "--minutes", "9", "--updates", "1"]
    peaks = ["--peak-tflops", "100", "--bandwidth-gb", "1000", "--parts", "2"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([*command, *peaks, "--out", str(tmp_path)], env=environment, timeout=600, check=True)
    for case in json.loads((tmp_path / "accelerator.json").read_text())["cases"]:
        ours, trl = case["contestants"]["jaxppo"], case["contestants"]["trl"]
        assert case["state"] == "done"
        assert trl["over_jaxppo"] > 0
        for name in ("mfu_update", "decode_tokens_per_s", "decode_limit_tokens_per_s", "compiler_peak_bytes"):
            assert ours[name] > 0


UPDATE = "--workload tiny --updates 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "names"),
    [
        ("ppo_update.py", f"{UPDATE} --vs-products --response 6 --layers 1", "s_per_update maxrss_mib products_s"),
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


COMPILED = """HloModule jit_f, is_scheduled=true

%fused (p.1: f32[8,4], p.2: s32[]) -> f32[2,4] {
  %p.1 = f32[8,4]{1,0} parameter(0)
  %p.2 = s32[] parameter(1)
  ROOT %part = f32[2,4]{1,0} dynamic-slice(%p.1, %p.2, %p.2), dynamic_slice_sizes={2,4}
}

%written (p.3: f32[8,4], p.4: f32[2,4], p.5: s32[]) -> f32[8,4] {
  %p.3 = f32[8,4]{1,0} parameter(0)
  %p.4 = f32[2,4]{1,0} parameter(1)
  %p.5 = s32[] parameter(2)
  ROOT %update = f32[8,4]{1,0} dynamic-update-slice(%p.3, %p.4, %p.5, %p.5)
}

%body (carry: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %carry = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%carry), index=1
  %begun = ((f32[8,4]{1,0}, s32[]), f32[2,4]{1,0}, u32[]) fusion-start(%x, %i), kind=kLoop, calls=%fused
  %small = f32[2,4]{1,0} fusion-done(%begun)
  %new = f32[8,4]{1,0} fusion(%x, %small, %i), kind=kLoop, calls=%written
  ROOT %next = (s32[], f32[8,4]{1,0}) tuple(%i, %new)
}

ENTRY %main (a: f32[8,4], b: bf16[4,8]) -> f32[8,4] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = bf16[4,8]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %a)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %result = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %product = f32[8,8]{1,0} custom-call(%result, %b), custom_call_target="gemm"
  ROOT %copy = f32[8,4]{1,0} copy(%result)
}
"""


def test_kernels_and_their_bytes_are_counted_with_the_trips_of_loops_and_the_parts_that_are_read_and_written(modules):
    found = modules.kernels.Module(COMPILED).kernels()
    part, whole = 2 * 4 * 4, 8 * 4 * 4
    # Reads a part and the two indices, writes the part; reads it and the index, writes it.
    in_loop = [("loop", 3, 2 * part + 4), ("loop", 3, 2 * part + 4)]
    assert found == [*in_loop, ("", 1, 64 + whole + 8 * 8 * 4), ("", 1, 2 * whole)]
    assert modules.kernels.array_bytes("(f32[2,3]{1,0}, /*index=1*/bf16[4]{0}, pred[5]{0}, s32[])") == 24 + 8 + 5 + 4


def test_a_plan_of_a_workload_has_what_is_counted(modules):
    """Compiled for this machine's CPU, whose compiler prints programs in the same language."""
    work = modules.workloads.WORKLOADS["tiny"]
    learner, plan = modules.kernels.programs_of(work, jax.devices()[:1])
    assert set(plan.stages) == {"generate", "score", "update"}
    assert learner.config.batch_size == work.batch
    (program,) = plan.stages["generate"]
    kernels = modules.kernels.Module(program.function.lower(*program.arguments).compile().as_text()).kernels()
    assert sum(kernel.num_bytes for kernel in kernels) > 0 and any(kernel.loop for kernel in kernels)
