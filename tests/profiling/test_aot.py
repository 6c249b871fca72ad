"""Programs compiled by the compilers of a TPU and a GPU that are not installed, by the command itself."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import jax
import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError
from jaxppo.parallel import platform
from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import aot, targets
from jaxppo.profiling.counts import Count
from tests.compilers import needs_gpu_compiler, needs_tpu_compiler
from tests.one_layer import ONE_LAYER

SMALL = "--batch_size 8 --response_length 8 --num_mini_batches 1 --num_ppo_epochs 1 --total_episodes 16"
SMALL += " --dtype bfloat16"
TRAIN = ["generate", "score", "update"]
"""Programs of `train`."""


def python(*words):
    """A process as a user starts it, without the flags that the tests give XLA's compiler for CPUs."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=600)


def run(command, *words):
    """The command with `--dry_run`, which ends well."""
    done = python("-m", f"jaxppo.{command}", *words, "--dry_run")
    assert done.returncode == 0, done.stderr
    return done


def compiled(command, target, flags):
    done = run(command, "--target", target, "--quiet", "True", *flags.split())
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def check(found, programs, memory_bytes):
    assert found["fits"] is True and found["memory_bytes"] == memory_bytes
    assert list(found["programs"]) == programs
    for program in found["programs"].values():
        assert program["compile_s"] > 0
        assert 0 < program["argument_bytes"] <= program["peak_bytes"] < found["memory_bytes"]
        assert 0 <= program["temp_bytes"] < program["peak_bytes"]
        assert program["flops"] > 1e6 and program["bytes"] > 1e5
        assert found["held_bytes"] < program["device_bytes"] < found["memory_bytes"]


@pytest.mark.full
@needs_tpu_compiler
def test_the_programs_of_ppo_are_compiled_for_a_tpu():
    flags = f"--preset tiny --sft_model_path {ONE_LAYER} {SMALL} --value_model shared"
    found = compiled("train", "tpu-v5e-4", flags)
    check(found, TRAIN, targets.CHIPS["v5e"].memory_bytes)
    assert found["programs"]["generate"]["sent_bytes"] == {}
    assert set(found["programs"]["update"]["sent_bytes"]) == {"all-reduce over data"}


@needs_tpu_compiler
def test_chips_have_the_names_that_jax_has_for_them():
    """In a process of its own, whose signals the compiler takes over."""
    names = ["tpu-v5e-1", "tpu-v5p-8", "tpu-v6e-8"]
    code = f"""
from jaxppo.parallel import platform
from jaxppo.profiling import aot, targets
platform.compile_only()
for name in {names}:
    print(*{{device.device_kind for device in aot.devices_of(targets.find(name))}}, sep=", ")
"""
    done = python("-c", code)
    assert done.stdout.splitlines() == [targets.find(name).chip.device_kind for name in names], done.stderr


@pytest.mark.full
@needs_gpu_compiler
@pytest.mark.parametrize("flags", ["", "--parallel fsdp --algorithm rloo --num_generations 2"])
def test_an_update_is_compiled_for_gpus(flags):
    target = "gpu:h100:1x4" if flags else "gpu-h100x1"
    found = compiled("train", target, f"--preset tiny --sft_model_path {ONE_LAYER} {SMALL} {flags}")
    check(found, TRAIN, int(0.75 * targets.CHIPS["h100"].memory_bytes))
    sent = found["programs"]["update"]["sent_bytes"]
    assert ({"all-gather over fsdp", "reduce-scatter over fsdp"} <= set(sent)) if flags else sent == {}


@pytest.mark.full
@needs_gpu_compiler
def test_what_does_not_fit_is_said_with_the_settings_that_take_less():
    """262,144 rows in one micro-batch, as somebody has set, are more than an H100 has."""
    sizes = "--batch_size 262144 --num_mini_batches 1 --total_episodes 262144 --response_length 64 --dtype bfloat16"
    command = ["train", "--preset", "tiny", "--sft_model_path", ONE_LAYER, *sizes.split()]
    command += ["--target", "gpu-h100x1", "--gradient_accumulation_steps"]
    said = run(*command, "1").stdout.splitlines()[-1]
    found = re.search(r"not fit: update takes ([\d.]+) of 59\.33 GiB .*: --gradient_accumulation_steps, .*_peft", said)
    assert found is not None and float(found[1]) > 59.33, said
    said = run(*command, "16").stdout.splitlines()[-1]
    found = re.search(r"^it fits: \w+ takes most, ([\d.]+) of 59\.33 GiB", said)
    assert found is not None and 59.33 > float(found[1]) > 0.5, said


class Lowered:
    """A program that its compiler refuses with these words, unless it gets options."""

    def __init__(self, words):
        self.words = words
        self.options = []

    def compile(self, compiler_options=None):
        self.options.append(compiler_options)
        if compiler_options is None:
            raise jax.errors.JaxRuntimeError(self.words)
        return "compiled"


def test_products_that_cannot_be_tiled_are_compiled_without_triton():
    lowered = Lowered("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.169 = f32[32,128,101]")
    assert aot._compile(lowered) == "compiled"
    assert lowered.options == [None, {"xla_gpu_enable_triton_gemm": False}]


def test_a_program_that_runs_twice_is_compiled_once_and_counted_twice(monkeypatch):
    def compile_program(program, trips):
        assert trips == 7
        done.append(program)
        return aot.Compiled(2.0, 10, len(done), 20, 15, Count(flops=len(done)))

    done = []
    monkeypatch.setattr(aot, "compile_program", compile_program)
    values, logprobs = aot.Program(len, ({"a": 1},), (2,)), aot.Program(max, ({"a": 1},), (2,))
    again = aot.Program(max, ({"a": 1},), (2,))
    plan = aot.Plan(DataParallel(), {"score": [values, logprobs, again]}, 0, {"score": 0}, 7)
    ((name, stage),) = aot.compile_plan(plan)
    assert name == "score" and done == [values, logprobs]
    assert (stage.compile_s, stage.temp_bytes, stage.counted.flops) == (4.0, 2, 1 + 2 + 2)


def test_other_refusals_of_a_compiler_are_not_tried_again():
    lowered = Lowered("RESOURCE_EXHAUSTED: Out of memory")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        aot._compile(lowered)
    assert lowered.options == [None]


@needs_tpu_compiler
@pytest.mark.parametrize(
    "code",
    [
        "import jax; from jaxppo.run import cli; cli.main(lambda: print(*jax.devices()))",
        "from jaxppo.doctor import checks; print(*checks.devices())",
    ],
    ids=["command", "doctor"],
)
def test_compilers_alone_do_not_disturb_what_runs_on_a_cpu(code):
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cpu" in done.stdout.lower()


def test_what_does_not_go_with_a_target_and_a_missing_compiler_are_refused(monkeypatch):
    for flags, named in (("--dry_run --parallel pmap", "parallel"), ("", "target")):
        with pytest.raises(ConfigError, match=f"^{named}: "):
            parse_cli(TrainConfig, "train", ["--preset", "tiny", "--target", "tpu-v5e-4", *flags.split()])
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for name in ("tpu-v5e-4", "gpu-h100x1"):
        with pytest.raises(ConfigError, match=rf"pip install 'jaxppo\[aot-{name[:3]}\]'"):
            aot.devices_of(targets.find(name))


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("total memory required for HLO temporaries (24.00G) exceeds available HBM (15.75G).", 24 * 2**30 - 1000),
        ("Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm.", int(20.5 * 2**30) - 1000),
        ("out of memory", 0),
    ],
)
def test_a_refusal_says_how_much(message, size):
    assert aot.needed_bytes(f"RESOURCE_EXHAUSTED: {message}", 1000) == size


def test_a_gpu_has_the_share_that_jax_takes(monkeypatch):
    target, memory_bytes = targets.find("gpu-h100x1"), targets.CHIPS["h100"].memory_bytes
    newer, older = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
    for name in (newer, older):
        monkeypatch.delenv(name, raising=False)
    assert aot.memory_of(target) == int(0.75 * memory_bytes)
    monkeypatch.setenv(older, ".5")
    assert aot.memory_of(target) == int(0.5 * memory_bytes)
    monkeypatch.setenv(older, "")
    monkeypatch.setenv(newer, ".9")
    assert aot.memory_of(target) == int(0.9 * memory_bytes)
    with aot.aiming_at(target):
        assert platform.current() == platform.Platform("gpu", int(0.9 * memory_bytes))
    assert platform.current().name == jax.default_backend()
    monkeypatch.setenv(newer, "much")
    with pytest.raises(ConfigError, match="XLA_CLIENT_MEM_FRACTION: "):
        aot.memory_of(target)
