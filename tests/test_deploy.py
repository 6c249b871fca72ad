"""deploy/: what the table says, parsed as those who read it would, and their scripts carried out.

The scripts run in bash with stand-ins for `python`, `srun` and `scontrol`, which write down how they were called.
"""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from jaxppo.config import TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.profiling import targets
from jaxppo.run.console import Console
from jaxppo.run.folder import Run
from tests import ROOT

WRITING = runpy.run_path(str(ROOT / "deploy" / "write.py"))
NAMES = WRITING["TABLE"]["targets"]
FILES = {path.relative_to(ROOT / "deploy").as_posix(): text for path, text in WRITING["files"](NAMES).items()}
OTHERS = [*targets.NAMES, "tpu:v5p:2x2x4", "gpu:b200:4x8"]
SEVERAL = ["slurm/gpu-h100-2x8.sbatch", "jobset/gpu-h100-2x8.yaml", "skypilot/gpu-h100-2x8.yaml"]
STAND_IN = """\
#!{python} -IS
import json, os, pathlib, signal, sys, time
name, folder = pathlib.Path(sys.argv[0]).name, pathlib.Path(os.environ["CALLS"])
with open(folder / "calls", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "srun":
    os.execvp(sys.argv[1], sys.argv[1:])
if name == "python" and "--dry_run" in sys.argv:
    print("it", os.environ["VERDICT"], flush=True)
elif name == "python":
    run = pathlib.Path(os.environ["CALLS"], "run")
    run.mkdir(parents=True, exist_ok=True)
    evals = {{"before": 1}}
    if os.environ["ENDS"] == "stopped":
        def stop(*_):
            (run / "saved").touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        (folder / "ready").touch()
        time.sleep(60)
    if os.environ["ENDS"] == "finished":
        evals["after"] = 1
    (run / "eval.json").write_text(json.dumps(evals, indent=2))
"""


def scripts(name):
    """The shell scripts of a file and the variables that it sets, the script that trains last."""
    text = FILES[name]
    kind = name.partition("/")[0]
    if kind == "slurm":
        return [text], {"SLURM_JOB_ID": "7"}
    content = yaml.safe_load(text)
    if kind == "skypilot":
        ranks = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
        return [content["run"]], content["envs"] | ranks
    pods = [job["template"]["spec"]["template"]["spec"]["containers"][0] for job in content["spec"]["replicatedJobs"]]
    assert all(pod["command"] == ["bash", "-c"] and len(pod["args"]) == 1 for pod in pods)
    settings = {setting["name"]: setting["value"] for pod in pods for setting in pod["env"]}
    return [pod["args"][0] for pod in pods], settings | {"JOB_COMPLETION_INDEX": "1"}


class Place:
    """Where scripts run: a folder with stand-ins, one run, and what was called."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("python", "srun", "scontrol"):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(STAND_IN.format(python=sys.executable))
            (folder / "bin" / name).chmod(0o755)
        (folder / "jaxppo" / "bin").mkdir(parents=True)
        (folder / "jaxppo" / "bin" / "activate").touch()

    def begin(self, script, settings, *, fits=True, ends="finished", flags=()):
        """Start a script; the run folder of every file is the one of this place."""
        script = re.sub(r"^RUN=.*$", 'RUN="$CALLS/run"', script, flags=re.MULTILINE)
        values = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "CALLS": str(self.folder),
            "VERDICT": "fits: 1 of 2 GiB" if fits else "does not fit: --use_peft takes less",
            "ENDS": ends,
        }
        settings = settings | ({"RUN": str(self.folder / "run")} if "RUN" in settings else {})
        command = ["bash", "-c", script, "bash", *flags]
        return subprocess.Popen(
            command, env=settings | values, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def carry_out(self, name, **how):
        """Run the scripts of a file in their order until one fails; returns the last status and output."""
        texts, settings = scripts(name)
        for text in texts:
            process = self.begin(text, settings, **how)
            output = process.communicate(timeout=60)[0]
            if process.returncode != 0:
                break
        return process.returncode, output

    @property
    def calls(self):
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def flags_of(call):
    """The flags of `train`, from how it was called."""
    words = call[1:] if call[0] == "srun" else call
    assert words[:3] == ["python", "-m", "jaxppo.train"]
    return parse_cli(TrainConfig, "train", words[3:])


def test_files_are_what_the_table_says():
    found = {
        path.relative_to(ROOT / "deploy").as_posix(): path.read_text(encoding="utf-8")
        for kind in WRITING["KINDS"]
        for path in (ROOT / "deploy" / kind).iterdir()
    }
    assert found == FILES, "python deploy/write.py"


@pytest.mark.parametrize("name", FILES)
def test_the_dry_run_comes_first_and_flags_are_those_of_train(name, place):
    status, output = place.carry_out(name)
    assert status == 0 and output == "it fits: 1 of 2 GiB\n" * (not name.startswith("jobset"))
    dry, *runs = place.calls
    planned, config = flags_of(dry), flags_of(runs[0])
    target = targets.find(planned.run.target)
    assert planned.run.dry_run and config.run.resume and Path(config.run.output_dir) == place.folder / "run"
    assert (planned.rl, planned.dtype, planned.run.parallel) == (config.rl, config.dtype, config.run.parallel)
    assert target.devices == 1 or config.run.parallel == "fsdp"
    config.check_devices(target.devices)
    several = target.devices > target.per_host
    assert (config.run.distributed is not None) == several
    if config.run.distributed not in (None, "auto"):
        address, number, count = config.run.process
        assert (number, count) == (1, 2)
        assert address in ("jaxppo-train-0-0.jaxppo:8476", "10.0.0.1:8476")


def test_what_the_files_take_for_fitting_and_for_finished_is_what_the_package_says(tmp_path):
    statuses = {
        "compiled\nit fits: 1 of 2 GiB\n": 0,
        "it does not fit: --use_peft takes less\n": 1,
        '{"target": "gpu-h100x1", "fits": true, "memory_bytes": 1}\n': 0,
        '{"target": "gpu-h100x1", "fits": false, "memory_bytes": 1}\n': 1,
        "": 1,
    }
    for said, status in statuses.items():
        done = subprocess.run(["bash", "-c", WRITING["FITS"]], input=said, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, said)
    measures = {"test": {"mean_reward": 1.0}}
    for evals in ({"before": measures}, {"before": measures, "after": measures}):
        run = Run(command="train", config=TrainConfig(), folder=tmp_path, console=Console(True), evals=evals)
        run.write_evals(evals)
        done = subprocess.run(["bash", "-c", WRITING["FINISHED"]], env=os.environ | {"RUN": str(tmp_path)}, check=False)
        assert (done.returncode == 0) == run.is_finished() == ("after" in evals)


def devices_of(name, text):
    """Hosts and devices of each, as SLURM, Kubernetes or SkyPilot read them."""
    if name.startswith("slurm"):
        options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
        return int(options["nodes"]), int(options["gres"].rpartition(":")[2])
    content = yaml.safe_load(text)
    if name.startswith("jobset"):
        job = content["spec"]["replicatedJobs"][1]["template"]["spec"]
        (container,) = job["template"]["spec"]["containers"]
        (count,) = container["resources"]["limits"].values()
        return job["completions"], count
    return content["num_nodes"], int(re.search(r"\d+$", content["resources"]["accelerators"])[0])


@pytest.mark.parametrize("target", OTHERS)
def test_every_target_has_its_machines(target):
    sizes = targets.find(target)
    written = WRITING["files"]([target])
    assert len(written) == (2 if sizes.platform == "tpu" else 3)
    for path, text in written.items():
        hosts, count = devices_of(path.relative_to(ROOT / "deploy").as_posix(), text)
        size = 2 if path.parent.name == "skypilot" and ":v5p:" in f":{sizes.topology}" else 1
        assert hosts * count == sizes.devices * size


@pytest.mark.parametrize("name", SEVERAL)
def test_what_does_not_fit_is_not_started_and_what_was_stopped_is_started_again(name, place):
    status, output = place.carry_out(name, fits=False)
    assert status != 0 and output == "it does not fit: --use_peft takes less\n"
    assert len(place.calls) == 1
    (place.folder / "calls").unlink()
    # A run that has begun is not planned again.
    (place.folder / "run").mkdir()
    status, _ = place.carry_out(name, ends="before its end")
    assert not any("--dry_run" in call for call in place.calls)
    again = (0, ["scontrol", "requeue", "7"])
    assert (status, place.calls[-1]) == again if name.startswith("slurm") else status == 75


def test_flags_of_sbatch_are_flags_of_train(place):
    status, _ = place.carry_out("slurm/gpu-h100x8.sbatch", flags=["--sft_model_path", "my model"])
    trained = [call for call in place.calls if "jaxppo.train" in call]
    assert status == 0 and len(trained) == 3  # planned, and run through srun
    assert all(call[call.index("--sft_model_path") + 1] == "my model" for call in trained)


def test_the_first_process_of_a_pod_passes_sigterm_on(place):
    texts, settings = scripts("jobset/tpu-v5e-16.yaml")
    process = place.begin(texts[-1], settings, ends="stopped")
    end = time.monotonic() + 60
    while not (place.folder / "ready").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (place.folder / "run" / "saved").exists()
    job = yaml.safe_load(FILES["jobset/tpu-v5e-16.yaml"])["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert process.returncode in job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
