"""Programs compiled by the compilers of a TPU and a GPU that are not there, by the command itself."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import jax
import pytest

from jaxppo.errors import ConfigError
from jaxppo.parallel import platform
from jaxppo.profiling import aot, targets
from tests.one_layer import ONE_LAYER

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no compiler for TPUs: pip install 'jaxppo[aot-tpu]'"
)
needs_gpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None or importlib.util.find_spec("jax_plugins.xla_cuda13") is None,
    reason="no compiler for GPUs: pip install 'jaxppo[aot-gpu]'",
)
SMALL = "--batch_size 8 --response_length 8 --num_mini_batches 1 --total_episodes 16 --dtype bfloat16"


def run(*words):
    """The command as a user runs it, without the flags that the tests give XLA's compiler for CPUs."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(
        [sys.executable, "-m", *words, "--dry_run"], env=environment, capture_output=True, text=True, timeout=600
    )


def compiled(command, target, flags):
    done = run(f"jaxppo.{command}", "--target", target, "--quiet", "True", *flags.split())
    assert done.returncode == 0, done.stderr
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


@needs_tpu_compiler
def test_an_update_is_compiled_for_a_tpu():
    found = compiled("train", "tpu-v5e-4", f"--preset tiny --sft_model_path {ONE_LAYER} {SMALL}")
    check(found, ["generate", "score", "update"], targets.CHIPS["v5e"].memory_bytes)
    assert found["target"] == "tpu-v5e-4"
    update = found["programs"]["update"]
    assert set(update["sent_bytes"]) == {"all-reduce over data"}  # gradients and statistics
    assert found["programs"]["generate"]["sent_bytes"] == {}


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.splitlines() == [targets.find(name).chip.device_kind for name in names], done.stderr


@pytest.mark.full
@needs_gpu_compiler
@pytest.mark.parametrize("flags", ["", "--parallel fsdp --algorithm rloo --num_generations 2"])
def test_an_update_is_compiled_for_gpus(flags):
    target = "gpu:h100:1x4" if flags else "gpu-h100x1"
    found = compiled("train", target, f"--preset tiny --sft_model_path {ONE_LAYER} {SMALL} {flags}")
    check(found, ["generate", "score", "update"], int(0.75 * targets.CHIPS["h100"].memory_bytes))
    sent = found["programs"]["update"]["sent_bytes"]
    assert ({"all-gather over fsdp", "reduce-scatter over fsdp"} <= set(sent)) if flags else sent == {}


@pytest.mark.full
@needs_tpu_compiler
@pytest.mark.parametrize("command", ["sft", "evaluate"])
def test_other_commands_are_compiled(command):
    flags = {"sft": f"--preset tiny --model_path {ONE_LAYER} --batch_size 8", "evaluate": f"--model {ONE_LAYER}"}
    found = compiled(command, "tpu-v5e-16" if command == "sft" else "tpu-v5e-1", flags[command].replace(" 8", " 16"))
    check(found, ["update" if command == "sft" else "generate"], targets.CHIPS["v5e"].memory_bytes)


@pytest.mark.full
@needs_gpu_compiler
@pytest.mark.parametrize("command", ["sft", "reward_model"])
def test_steps_on_fixed_rows_are_cut_into_micro_batches_that_fit(command, tmp_path):
    """Twelve layers on 49,152 rows, 8,192 pairs: what a gradient keeps of all of them is more than an H100 has."""
    row = json.dumps({"prompt": "clear a", "chosen": "clear b " * 24, "rejected": "on a b " * 24})
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f"{row}\n" * 8192)
    flags = {
        "sft": "--preset tiny --hidden_size 128 --batch_size 49152 --total_episodes 49152",
        "reward_model": f"--dataset {tmp_path} --tokenizer_path blocksworld-sft --hidden_size 512 "
        "--num_attention_heads 4 --batch_size 8192 --total_episodes 8192",
    }[command]
    common = "--num_hidden_layers 12 --dtype bfloat16 --target gpu-h100x1"
    done = run(f"jaxppo.{command}", *flags.split(), *common.split())
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"it fits: update takes most, ([\d.]+) of 59\.33 GiB .*", done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
    assert 0.2 * 59.33 < float(found[1]) < 0.8 * 59.33


@pytest.mark.full
@needs_gpu_compiler
def test_what_does_not_fit_is_told_with_what_would():
    """262,144 rows in one micro-batch, as somebody has set, are more than an H100 has."""
    sizes = "--batch_size 262144 --num_mini_batches 1 --total_episodes 262144 --response_length 64 --dtype bfloat16"
    command = ["jaxppo.train", "--preset", "tiny", "--sft_model_path", ONE_LAYER, *sizes.split()]
    command += ["--target", "gpu-h100x1", "--gradient_accumulation_steps"]
    done = run(*command, "1")
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(
        r"it does not fit: update takes ([\d.]+) of 59\.33 GiB on each device; "
        r"--gradient_accumulation_steps (\d+) makes it fit \(update then takes most, ([\d.]+) GiB\)",
        done.stdout.splitlines()[-1],
    )
    assert found is not None, done.stdout
    assert float(found[1]) > 59.33 > float(found[3]) > 0.5
    done = run(*command, found[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"it fits: update takes most, {found[3]} of 59.33 GiB on each device"


@needs_tpu_compiler
def test_compilers_alone_do_not_disturb_a_run_on_a_cpu():
    done = run("jaxppo.train", "--preset", "tiny")
    assert done.returncode == 0 and done.stderr == ""
    assert "1 cpu device(s)" in done.stdout


@needs_tpu_compiler
def test_compilers_alone_do_not_disturb_the_doctor():
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    code = "from jaxppo.doctor import checks; print(*checks.devices())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert "cpu" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--preset tiny --target tpu-v9", "target: expected one of"),
        ("--preset tiny --target tpu-v5e-4 --parallel pmap", "parallel: expected shard_map or fsdp with target"),
        ("--preset tiny --target tpu-v5e-4 --dry_run False", "target: expected --dry_run with it"),
    ],
)
def test_bad_input_is_one_line(flags, message):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    words = [word for word in f"--dry_run {flags}".split() if "--dry_run False" not in flags or word != "--dry_run"]
    words = [word for word in words if word != "False"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxppo.train", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["tpu-v5e-4", "gpu-h100x1"])
def test_a_missing_compiler_is_named_with_its_extra(monkeypatch, name):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
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
    assert aot.memory_of(target) == int(0.75 * memory_bytes) and aot.gpu_fraction_variable() == newer
    monkeypatch.setenv(older, ".5")
    assert aot.memory_of(target) == int(0.5 * memory_bytes) and aot.gpu_fraction_variable() == older
    monkeypatch.setenv(older, "")
    monkeypatch.setenv(newer, ".9")
    assert aot.memory_of(target) == int(0.9 * memory_bytes)
    with aot.aiming_at(target):
        assert platform.current() == platform.Platform("gpu", int(0.9 * memory_bytes))
    assert platform.current().name == jax.default_backend()
    for wrong in ("much", "0", "nan"):
        monkeypatch.setenv(newer, wrong)
        with pytest.raises(ConfigError, match=f"XLA_CLIENT_MEM_FRACTION: expected a share .* got '{wrong}'"):
            aot.memory_of(target)
