"""Writes the launch files of this folder from machines.toml: `python deploy/write.py [TARGET...]`.

Each file first asks whether the run fits its machines (`--dry_run --target`), once, and then carries it out with
`--resume`. A run that was stopped by SIGTERM has a checkpoint and ends with status 0, so they look into `eval.json`
for whether something is left to do.
"""

import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from jaxppo.errors import ConfigError  # noqa: E402
from jaxppo.profiling import targets  # noqa: E402

TABLE = tomllib.loads((FOLDER / "machines.toml").read_text(encoding="utf-8"))

PORT = 8476
"""Where the first process of a run listens to the others."""
GRACE_S = 300
"""From SIGTERM to the end: for the stage that is under way, and a checkpoint."""
CONNECT_S = 900
"""Hosts of a cloud come one after the other."""
STOPPED = 75
"""Exit status of a run that was stopped and can go on; sysexits.h calls it EX_TEMPFAIL."""

FITS = "awk '{ print } /^it fits|.fits.: true/ { fits = 1 } END { exit !fits }'"
"""Shows what `--target` says, and fails unless it says this, in words or (`--quiet`) as JSON."""
FINISHED = """grep -qs '"after"' "$RUN/eval.json\""""
"""The last thing that a run writes is its evaluation after training."""


class Machine(NamedTuple):
    """A target, as launch files need it."""

    target: targets.Target
    names: dict[str, Any]  # by who calls its chip so

    @property
    def file(self) -> str:
        """Name of its files, without what is behind the point."""
        return self.target.name.replace(":", "-")

    @property
    def hosts(self) -> int:
        """Machines, with one process each."""
        return self.target.devices // self.target.per_host

    @property
    def is_tpu(self) -> bool:
        """Whether it is a slice of TPUs."""
        return self.target.platform == "tpu"

    @property
    def flags(self) -> str:
        """Of `train`, where nothing else is said."""
        return "--dtype bfloat16" + (" --parallel fsdp" if self.target.devices > 1 else "")

    @property
    def head(self) -> str:
        """What a file is for, in words."""
        hosts = "one host" if self.hosts == 1 else f"{self.hosts} hosts"
        devices = f"{self.target.per_host} device{'s' * (self.target.per_host > 1)}"
        return f"jaxppo on {self.target.name}: {hosts} with {devices}. By `python deploy/write.py`, see docs/deploy.md."


def machine_of(name: str) -> Machine:
    """Return the machine of a target's name."""
    target = targets.find(name)
    chip = next(chip for chip, sizes in targets.CHIPS.items() if sizes == target.chip)
    return Machine(target, TABLE[chip])


def plan(machine: Machine, flags: str) -> str:
    """Write the first step, which fails where the run does not fit; the log says which settings take less."""
    command = f"python -m jaxppo.train --dry_run --target {machine.target.name} {flags}"
    return f'[ -e "$RUN" ] || {command} |\n  {FITS}'


def train(flags: str, *others: str) -> str:
    """Write the run itself; `others` say how it finds its other processes."""
    return " \\\n  ".join([f'python -m jaxppo.train --resume --output_dir "$RUN" {flags}', *others])


def meet(machine: Machine, address: str, count: str, number: str) -> list[str]:
    """Write how the processes of several hosts find each other; a slice of TPUs knows it by itself."""
    if machine.hosts == 1:
        return []
    if machine.is_tpu:
        return ["--distributed auto"]
    return [f"--distributed {address},{number}/{count}"]


def waiting(machine: Machine) -> str:
    """Write how long the processes of several hosts wait for each other."""
    return f"JAXPPO_CONNECT_TIMEOUT_S={CONNECT_S} " if machine.hosts > 1 else ""


def slurm(machine: Machine) -> str:
    """Write a batch script: one process per host, with all GPUs of it."""
    count = machine.target.per_host
    several = machine.hosts > 1
    # Else JAX gives each process of SLURM one GPU.
    devices = f"export JAX_LOCAL_DEVICE_IDS={','.join(map(str, range(count)))}\n" if several else ""
    return f"""\
#!/usr/bin/env bash
# {machine.head}
# sbatch deploy/slurm/{machine.file}.sbatch [FLAGS OF train]; where all hosts see this folder and its environment.
#SBATCH --job-name=jaxppo
#SBATCH --nodes={machine.hosts}
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:{machine.names["slurm"]}:{count}
#SBATCH --cpus-per-task={8 * count}
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@{GRACE_S}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail

RUN=outputs/slurm-$SLURM_JOB_ID
FLAGS=({machine.flags} "$@")
{devices}
{plan(machine, '"${FLAGS[@]}"')}
srun {train('"${FLAGS[@]}"', *["--distributed auto"] * several)}
# SIGTERM {GRACE_S} s before the time is over: saved, but not finished.
{FINISHED} || scontrol requeue "$SLURM_JOB_ID"
"""


def jobset(machine: Machine) -> str:
    """Write a JobSet: the plan on any node first, then one pod per host."""
    return f"""\
# {machine.head}
# kubectl apply -f deploy/jobset/{machine.file}.yaml; image, claim, RUN and FLAGS are yours. JobSet 0.8 or newer.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: jaxppo
spec:
  failurePolicy:
    maxRestarts: 3
    rules:
      - name: stopped # a pod that was sent away is no failure
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
{plan_job(machine)}{train_job(machine)}"""


def plan_job(machine: Machine) -> str:
    """Write the job of a JobSet that asks whether the run fits, with what both jobs share."""
    script = f"set -euo pipefail\n{plan(machine, '$FLAGS')}"
    return f"""\
    - name: plan # on any node, before a device is asked for
      template:
        spec:
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              securityContext: &user {{fsGroup: 1000}}
              containers:
                - name: plan
                  image: &image jaxppo:{"tpu" if machine.is_tpu else "gpu"}
                  env: &settings
                    - {{name: RUN, value: /runs/first}}
                    - {{name: FLAGS, value: {machine.flags}}}
                  volumeMounts: &mounts
                    - {{name: runs, mountPath: /runs}}
                  command: [bash, -c]
                  args:
                  - |
{textwrap.indent(script, " " * 20)}
              volumes: &volumes
                - name: runs
                  persistentVolumeClaim: {{claimName: jaxppo-runs}} # ReadWriteMany
"""


def train_job(machine: Machine) -> str:
    """Write the job of a JobSet that is the run; its first process is a shell, and the only one that gets SIGTERM."""
    labels, resource = {"cloud.google.com/gke-accelerator": machine.names["gke"]}, "nvidia.com/gpu"
    if machine.is_tpu:
        labels = {"cloud.google.com/gke-tpu-accelerator": machine.names["gke"]}
        labels["cloud.google.com/gke-tpu-topology"] = machine.target.topology.partition(":")[2]
        resource = "google.com/tpu"
    selector = "\n".join(f"{label}: {value}" for label, value in labels.items())
    # All hosts of a slice are of one node pool.
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool"
    together = (
        f"        metadata: {{annotations: {{{exclusive}}}}}\n"
        if machine.is_tpu and machine.hosts > 1
        else ""
    )
    meeting = meet(
        machine, f"jaxppo-train-0-0.jaxppo:{PORT}", str(machine.hosts), '"$JOB_COMPLETION_INDEX"'
    )
    script = f"""\
set -euo pipefail
trap 'kill -TERM "$!"; wait "$!"' TERM
{waiting(machine)}{train("$FLAGS", *meeting)} &
wait "$!" || status=$?
{FINISHED} || exit "${{status:-{STOPPED}}}\""""
    return f"""\
    - name: train
      dependsOn: [{{name: plan, status: Complete}}]
      template:
{together}        spec:
          completionMode: Indexed
          completions: {machine.hosts}
          parallelism: {machine.hosts}
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - {{action: FailJob, onPodConditions: [{{type: DisruptionTarget, status: "True"}}]}}
              - {{action: FailJob, onExitCodes: {{containerName: train, operator: In, values: [{STOPPED}, 143]}}}}
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: {GRACE_S}
              securityContext: *user
              nodeSelector:
{textwrap.indent(selector, " " * 16)}
              containers:
                - name: train
                  image: *image
                  env: *settings
                  volumeMounts: *mounts
                  resources:
                    limits: {{{resource}: {machine.target.per_host}}}
                  command: [bash, -c]
                  args:
                  - |
{textwrap.indent(script, " " * 20)}
              volumes: *volumes
"""


def skypilot(machine: Machine) -> str:
    """Write a managed job, which SkyPilot starts elsewhere when its machines are taken away."""
    target = machine.target
    if machine.is_tpu:
        name = f"{machine.names['skypilot']}-{target.devices * machine.names['size']}"
        resources = f"accelerators: {name}\n  accelerator_args: {{runtime_version: {machine.names['runtime']}}}"
    else:
        resources = f"accelerators: {machine.names['skypilot']}:{target.per_host}"
    others = (
        f'"$(head -n 1 <<< "$SKYPILOT_NODE_IPS"):{PORT}"',
        '"$SKYPILOT_NUM_NODES"',
        '"$SKYPILOT_NODE_RANK"',
    )
    run = f"""\
set -euo pipefail
. ~/jaxppo/bin/activate
{plan(machine, "$FLAGS")}
{waiting(machine)}{train("$FLAGS", *meet(machine, *others))}
{FINISHED} || exit {STOPPED}"""
    return f"""\
# {machine.head}
# sky jobs launch deploy/skypilot/{machine.file}.yaml [--env FLAGS='...']; the bucket is yours to name.
name: jaxppo
workdir: .
num_nodes: {1 if machine.is_tpu else machine.hosts}
resources:
  {resources}
  use_spot: true
  job_recovery:
    max_restarts_on_errors: 3
    recover_on_exit_codes: [{STOPPED}]
envs:
  RUN: /runs/first
  FLAGS: {machine.flags}
file_mounts:
  /runs: {{name: jaxppo-runs, store: gcs, mode: MOUNT}}
setup: |
  pip install --quiet uv
  uv venv --python 3.12 ~/jaxppo
  . ~/jaxppo/bin/activate
  uv pip install -e '.[{target.platform}]'
run: |
{textwrap.indent(run, "  ")}
"""


KINDS = {"slurm": (slurm, "sbatch"), "jobset": (jobset, "yaml"), "skypilot": (skypilot, "yaml")}
"""Folders, with who writes their files and how these end."""


def files(names: list[str]) -> dict[Path, str]:
    """Return the launch files of targets; SLURM's are for GPUs alone."""
    machines = [machine_of(name) for name in names]
    return {
        FOLDER / kind / f"{machine.file}.{suffix}": write(machine)
        for kind, (write, suffix) in KINDS.items()
        for machine in machines
        if kind != "slurm" or not machine.is_tpu
    }


if __name__ == "__main__":
    try:
        written = files(sys.argv[1:] or TABLE["targets"])
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(FOLDER.parent))
