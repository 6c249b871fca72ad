"""Kills commands at random moments and sees that they go on as if nothing had happened.

    python runs/chaos.py [--kills 200] [--seed 0] [--output_dir outputs/chaos] [--jobs ppo sft ...]

Every job is run once in peace. Then, trial after trial, a job is started and disturbed a few times: SIGKILL, SIGTERM,
SIGINT or SIGTERM with SIGKILL behind it; a disk on which nothing can be written for seconds; a folder that is read-only
for seconds; seconds in which the process stands still; a flipped byte in the newest checkpoint. In every fourth trial
the disk is slow, too (`slow_disk.c`, where there is a C compiler). Each time the same command goes on with `--resume`,
and the last time nobody disturbs it. What it leaves must then equal what the quiet run left, no command may print a
traceback, and none may hang. `trials.jsonl` has one line for each trial; `--only N` replays one, as far as time allows.
"""

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen as Process
from types import MappingProxyType
from typing import NamedTuple

from jaxppo.data import word_tokenizer
from jaxppo.run.metrics import MAY_DIFFER

ROOT = Path(__file__).parents[1]
THERE = ("report.html", "plans.jsonl")
"""These hold times; that they are there is enough."""
SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGTERM and SIGKILL": (signal.SIGTERM, signal.SIGKILL),
}
SLOW_DISK = "slow_disk.so"
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
"""From linux/prctl.h and linux/capability.h."""
END_S = 120.0
"""So soon must a command end that was told to."""
JOIN_S = 360.0
"""So long may a process wait for one that was killed before it came: JAX waits for five minutes."""
WHOLE_S = 900.0

_TINY = (
    "--preset tiny --sizes test=4:4 test_longer=5:4 --response_length 16 --num_sample_generations 4 "
    "--save_steps 1 --save_total_limit 2"
)
_FRESH = "--hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2 --eval_steps 10"
_BLOCKSWORLD = "--domains blocksworld --unseen_domains --n_rl 8 --n_test 8"


class Job(NamedTuple):
    """A command, without its output folder, and how many processes it takes."""

    command: str
    n_processes: int = 1
    flags: str = "--resume"


JOBS = {
    "ppo": Job(f"jaxppo.train {_TINY} --kl_target 6 --score_scaling norm"),
    "rloo": Job(f"jaxppo.train {_TINY} --algorithm rloo --num_generations 4"),
    "async": Job(f"jaxppo.train {_TINY} --async_rollouts 1 --kl_target 6"),
    "two": Job(f"jaxppo.train {_TINY}", n_processes=2),
    "sft": Job(
        f"jaxppo.sft --dataset {{data}} --total_episodes 640 --batch_size 16 --save_steps 3 {_FRESH}"
    ),
    "reward_model": Job(
        "jaxppo.reward_model --dataset {pairs} --tokenizer_path {tokenizer} --total_episodes 240 --batch_size 8 "
        f"--save_steps 3 {_FRESH}"
    ),
    "evaluate": Job(
        "jaxppo.evaluate --eval_splits test --sizes test=4:16 --eval_rows 16 --response_length 16"
    ),
    "data": Job(
        f"jaxppo.planning build {_BLOCKSWORLD} --n_train 400 --train_sizes blocksworld:3-6",
        flags="",
    ),
}


class Ended(NamedTuple):
    """How the processes of one start ended, and what they had printed."""

    statuses: tuple[int, ...]
    output: str
    hung: bool


class Disturbance(NamedTuple):
    """What was done to a command, how many seconds after its start; `kind` is a key of SIGNALS for a kill."""

    kind: str
    after_s: float
    status: int | None


class Chaos:
    """Runs jobs in a folder, quietly and disturbed."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._quiet_s: dict[str, float] = {}

    def quiet(self, name: str) -> Path:
        """Run a job in peace, twice where programs must be compiled first; return its folder."""
        folder = self._folder / "quiet" / name
        for _ in range(2):
            shutil.rmtree(folder, ignore_errors=True)
            start = time.monotonic()
            ended = _await(self._start(name, folder), WHOLE_S)
            self._quiet_s[name] = time.monotonic() - start
            if any(ended.statuses):
                raise SystemExit(f"{name}: failed without any disturbance:\n{ended.output}")
        print(f"{name}: {self._quiet_s[name]:.1f} s in peace", flush=True)
        return folder

    def trial(self, number: int, name: str, rng: random.Random) -> dict:
        """Disturb a job a few times, let it end, and compare; `wrong` is empty where all is as it should be."""
        folder = self._folder / "trials" / f"{number}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        done: list[Disturbance] = []
        wrong: list[str] = []
        library = self._folder / "given" / SLOW_DISK
        is_slow = library.exists() and rng.random() < 0.25
        for _ in range(rng.randint(2, 5)):
            processes = self._start(name, folder, {"LD_PRELOAD": str(library)} if is_slow else {})
            disturbance, ended = self._disturb(processes, folder, name, rng)
            done.append(disturbance)
            wrong += _faults(ended)
        ended = _await(self._start(name, folder), WHOLE_S)
        wrong += _faults(ended)
        wrong += [
            f"status {status} at the end:\n{ended.output}" for status in ended.statuses if status
        ]
        wrong = wrong or differences(self._folder / "quiet" / name, folder)
        if not wrong:
            shutil.rmtree(folder)
        told = [disturbance._asdict() for disturbance in done]
        return {"trial": number, "job": name, "slow_disk": is_slow, "done": told, "wrong": wrong}

    def _start(
        self, name: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> list[Process]:
        job = JOBS[name]
        folder.mkdir(parents=True, exist_ok=True)
        given = {key: str(self._folder / "given" / key) for key in ("data", "pairs", "tokenizer")}
        words = [
            *job.command.format(**given).split(),
            *job.flags.split(),
            "--quiet",
            "--output_dir",
            str(folder),
        ]
        return [_process([*words, *more], environment) for more in _process_flags(job.n_processes)]

    def _disturb(
        self, processes: Sequence[Process], folder: Path, name: str, rng: random.Random
    ) -> tuple[Disturbance, Ended]:
        kind = rng.choice([*SIGNALS, *SIGNALS, *OTHERS])
        after_s = rng.uniform(0.0, 1.0) * self._quiet_s[name]
        struck = rng.sample(processes, rng.randint(1, len(processes)))
        deadline = time.monotonic() + after_s
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            time.sleep(0.02)
        alive = [process for process in struck if process.poll() is None]
        if not alive:
            return Disturbance(f"{kind}, too late", after_s, processes[0].returncode), _await(
                processes, END_S
            )
        if kind in SIGNALS:
            for signum in SIGNALS[kind]:
                _send(alive, signum)
                time.sleep(rng.uniform(0.0, 0.5))
        else:
            OTHERS[kind](alive, folder, rng)
        end_s = END_S if len(processes) == 1 else JOIN_S
        ended = _await(processes, end_s if kind in SIGNALS else WHOLE_S)
        if kind == "a flipped byte":
            _flip(folder, rng)
        return Disturbance(kind, round(after_s, 2), ended.statuses[0]), ended


def _full_disk(processes: Sequence[Process], folder: Path, rng: random.Random) -> None:
    """Let no file grow for some seconds."""
    del folder
    _limit(processes, 0)
    time.sleep(rng.uniform(0.5, 4.0))
    _limit(processes, resource.RLIM_INFINITY)


def _limit(processes: Sequence[Process], n_bytes: int) -> None:
    for process in processes:
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def _read_only(processes: Sequence[Process], folder: Path, rng: random.Random) -> None:
    """Let nothing be written into the output folder for some seconds, whichever process is struck."""
    del processes
    # Which passes over what is removed meanwhile
    folders = [Path(path) for path, _, _ in os.walk(folder)]
    for mode, seconds in ((0o555, rng.uniform(0.5, 4.0)), (0o755, 0.0)):
        for path in folders:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                path.chmod(mode)
        time.sleep(seconds)


def _stand_still(processes: Sequence[Process], folder: Path, rng: random.Random) -> None:
    del folder
    _send(processes, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 4.0))
    _send(processes, signal.SIGCONT)


def _kill(processes: Sequence[Process], folder: Path, rng: random.Random) -> None:
    del folder, rng
    _send(processes, signal.SIGKILL)


OTHERS: dict[str, Callable[[Sequence[Process], Path, random.Random], None]] = {
    "a full disk": _full_disk,
    "a read-only folder": _read_only,
    "standing still": _stand_still,
    "a flipped byte": _kill,
}


def _flip(folder: Path, rng: random.Random) -> None:
    """Change one byte of the newest checkpoint, where there is an older one to go back to."""
    steps = sorted(
        (int(path.name), path) for path in folder.glob("checkpoints/*") if path.name.isdecimal()
    )
    if len(steps) > 1:
        path = rng.choice(
            [
                path
                for path in sorted(steps[-1][1].rglob("*"))
                if path.is_file() and path.stat().st_size
            ]
        )
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def _process(words: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Start a module in a session of its own, in which Ctrl-C is not ignored, and modes of files not even by root."""
    return Process(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_prepare,
    )


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # refused, and not needed, unless root
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def _process_flags(n_processes: int) -> Iterator[list[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    for number in range(n_processes):
        flags = ["--distributed", f"{address},{number}/{n_processes}"]
        yield flags if n_processes > 1 else []


def _send(processes: Sequence[Process], signum: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signum)


def _await(processes: Sequence[Process], timeout_s: float) -> Ended:
    """Wait for the processes to end, and kill what has not ended by then."""
    deadline = time.monotonic() + timeout_s
    printed, hung = [], False
    for process in processes:
        try:
            printed.append(process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGKILL)
            printed.append(process.communicate()[0])
    return Ended(tuple(process.returncode for process in processes), "\n--\n".join(printed), hung)


def _faults(ended: Ended) -> list[str]:
    """What no command may do: hang, or end with a traceback.

    Tracebacks of Ctrl-C alone are Python's own: while modules are imported nobody catches it, and in a callback it may
    be lost, and the run goes on. Of several processes one shows JAX's traceback of what it lost, and then says why.
    """
    faults = [f"did not end:\n{ended.output}"] if ended.hung else []
    n_tracebacks = ended.output.count("Traceback (most recent call last)")
    n_ctrl_c = len(re.findall("^KeyboardInterrupt", ended.output, re.MULTILINE))
    is_said = len(ended.statuses) > 1 and "error: process" in ended.output
    return faults + (
        [f"a traceback:\n{ended.output}"] if n_tracebacks > n_ctrl_c and not is_said else []
    )


def differences(quiet: Path, folder: Path) -> list[str]:
    """Compare two output folders; the points of TensorBoard are left to the tests of resume."""
    left, right = _comparable(quiet), _comparable(folder)
    return [
        f"{name} differs" for name in sorted({*left, *right}) if left.get(name) != right.get(name)
    ]


def _comparable(folder: Path) -> dict[str, object]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name.split(os.sep)[0] not in ("checkpoints", "tensorboard"):
            found[name] = _content(path, folder)
    return found


def _content(path: Path, folder: Path) -> object:
    """What a file says, without its folder's name and the port at which two processes met."""
    if path.name in THERE:
        return True
    if path.name == "metrics.jsonl":
        records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [
            {k: v for k, v in record.items() if not k.startswith(MAY_DIFFER)} for record in records
        ]
    return re.sub(
        rb"(?<=127\.0\.0\.1:)\d+",
        b"PORT",
        path.read_bytes().replace(os.fsencode(folder), b"FOLDER"),
    )


def make_given(folder: Path) -> None:
    """Write what the jobs read: problems, pairs of completions, and a tokenizer for these."""
    rng = random.Random(0)
    words = [f"w{number}" for number in range(30)]
    (folder / "pairs").mkdir(parents=True)
    for split, n_rows in (("train", 60), ("test", 20)):
        with open(folder / "pairs" / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(n_rows):
                prompt, chosen, rejected = (" ".join(rng.choices(words, k=6)) for _ in range(3))
                row = {"prompt": prompt, "chosen": f"{chosen} w0", "rejected": rejected}
                file.write(json.dumps(row) + "\n")
    word_tokenizer(words).save_pretrained(folder / "tokenizer")
    if shutil.which("cc"):
        source = ROOT / "runs" / "slow_disk.c"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", folder / SLOW_DISK, source, "-ldl"], check=True
        )
    build = (
        f"jaxppo.planning build {_BLOCKSWORLD} --n_train 60 --quiet --output_dir {folder / 'data'}"
    )
    subprocess.run([sys.executable, "-m", *build.split()], cwd=ROOT, check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Return how many trials went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=200, help="end after so many signals that met a living process"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="replay this trial alone")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/chaos"))
    args = parser.parse_args(argv)
    folder = args.output_dir.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    make_given(folder / "given")
    chaos = Chaos(folder)
    for name in args.jobs:
        chaos.quiet(name)
    kills = trials = wrong = 0
    while kills < args.kills and not (args.only is not None and trials):
        number = trials if args.only is None else args.only
        result = chaos.trial(
            number, args.jobs[number % len(args.jobs)], random.Random(f"{args.seed} {number}")
        )
        with open(folder / "trials.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        trials += 1
        kills += sum(d["kind"] in SIGNALS or d["kind"] == "a flipped byte" for d in result["done"])
        wrong += bool(result["wrong"])
        told = ", ".join(f"{d['kind']} at {d['after_s']:.1f} s" for d in result["done"])
        disk = " on a slow disk" * result["slow_disk"]
        print(
            f"{number} {result['job']}{disk}: {told}: {'; '.join(result['wrong']) or 'equal'}",
            flush=True,
        )
    print(f"{trials} trials, {kills} kills, {wrong} wrong (seed {args.seed})")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
