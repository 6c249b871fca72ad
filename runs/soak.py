"""A long run that must not grow: thousands of updates with a reward server, VAL, and a reward function that misbehaves.

    python runs/soak.py [--updates 2000] [--every 100] [--output_dir outputs/soak]

The run asks a reward server over HTTP, has VAL judge every plan again, and calls `unruly`, which raises, never ends or
kills its process at random. Of the run, its children and the server it measures, again and again: memory, open files,
threads, processes, temporary files, and processor seconds. Then `soak.json` and `soak.png`, and the sentences that say
whether anything grew.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from jaxppo.run.jsonl import read_metrics

ROOT = Path(__file__).parents[1]
MODULE = f"{Path(__file__).parent.name}.{Path(__file__).stem}"
EPISODES = 8
COUNTED = {
    f"reward/{name}"
    for name in ("val_audited", "val_disagreements", "val_failed", "errors", "timeouts")
}
SETTINGS = """--preset tiny --num_sample_generations 0 --sizes test=4:4 test_longer=5:4 --batch_size 8
--response_length 16 --num_ppo_epochs 1 --num_mini_batches 1 --save_steps 50 --save_total_limit 2
--reward_funcs plan http://127.0.0.1:{port} {module}:unruly --reward_weights 1 0.1 0.1
--reward_timeout_s 2 --on_error 0.0
--quiet"""


def unruly(completions: Sequence[str], **columns: object) -> list[float]:
    """Score completions by their length; of 1,000 calls about 20 raise, 2 do not end and 2 kill their process."""
    chance = random.random()
    if chance < 0.002:
        time.sleep(3600)
    if chance < 0.004:
        os.kill(os.getpid(), signal.SIGKILL)
    if chance < 0.024:
        raise RuntimeError("unruly as agreed")
    return [min(1.0, len(completion) / 100) for completion in completions]


def steady(completions: Sequence[str], **columns: object) -> list[float]:
    """Score for the server."""
    return [float(text.count("(")) for text in completions]


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found


def measure(pid: int) -> dict[str, float]:
    """What one process holds now, and the seconds of processor time it has had."""
    folder = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    return {
        "memory, MiB": int(status["VmRSS"].split()[0]) / 1024,
        "open files": len(list((folder / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "processor, s": (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"),
    }


def observe(run: int, server: int, updates: int, temporary: Path) -> dict[str, float]:
    """A row of the table: the run and the server, the processes under the run, and temporary files."""
    row = {"updates": float(updates), "time, s": time.monotonic()}
    row |= {f"run: {name}": value for name, value in measure(run).items()}
    row |= {f"server: {name}": value for name, value in measure(server).items()}
    row["processes under the run"] = len(tree(run)) - 1
    # os.walk passes over what is removed meanwhile.
    row["temporary files"] = sum(
        len(folders) + len(files) for _, folders, files in os.walk(temporary)
    )
    return row


def updates_of(folder: Path) -> int:
    """How many updates are written down."""
    path = folder / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def soak(folder: Path, updates: int, every: int, port: int) -> list[dict[str, float]]:
    """Run, and measure every so many updates.

    Raises:
        SystemExit: the run or the server failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        environment = os.environ | {
            "TMPDIR": temporary,
            "JAX_PLATFORMS": "cpu",
            "HF_HUB_OFFLINE": "1",
        }
        started = [
            _start(
                ["jaxppo.reward_server", "--port", port, "--reward_funcs", f"{MODULE}:steady"],
                environment,
            )
        ]
        try:
            (server,) = started
            _await_server(port, server)
            settings = SETTINGS.format(module=MODULE, port=port).split()
            flags = [*settings, "--total_episodes", updates * EPISODES, "--output_dir", folder]
            started.append(run := _start(["jaxppo.train", *flags], environment))
            rows, due = [], every + every // 4  # not while a checkpoint is written
            while run.poll() is None:
                if (done := updates_of(folder)) >= due:
                    try:
                        rows.append(observe(run.pid, server.pid, done, Path(temporary)))
                    except (OSError, KeyError):  # it has just ended
                        break
                    due += every
                time.sleep(0.2)
            run.wait()
        finally:
            for process in started:
                process.terminate()
                process.wait()
    if run.returncode:
        raise SystemExit(f"soak: the run ended with status {run.returncode}")
    return rows


def _start(words: Iterable[object], environment: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", *map(str, words)], cwd=ROOT, env=environment)


def _await_server(port: int, server: subprocess.Popen) -> None:
    for _ in range(600):
        try:
            urlopen(f"http://127.0.0.1:{port}/health").close()
        except URLError:
            if server.poll() is not None:
                raise SystemExit("soak: the reward server did not start") from None
            time.sleep(0.1)
        else:
            return
    raise SystemExit("soak: the reward server did not answer within a minute")


def growth(rows: Sequence[dict[str, float]], name: str) -> tuple[float, float]:
    """Return the median of a column in the first and in the last third, without the first row, where caches fill."""
    values = [row[name] for row in rows[1:]]
    third = max(1, len(values) // 3)
    first, last = (sorted(part)[len(part) // 2] for part in (values[:third], values[-third:]))
    return first, last


def speeds(rows: Sequence[dict[str, float]], name: str) -> list[float]:
    """What each stretch between two rows took per update."""
    pairs = pairwise(rows)
    return [
        (after[name] - before[name]) / (after["updates"] - before["updates"])
        for before, after in pairs
    ]


def summary(folder: Path, rows: Sequence[dict[str, float]]) -> list[str]:
    """Say what grew, and what the rewards met."""
    lines = []
    for name in sorted(
        rows[0].keys() - {"updates", "time, s", "run: processor, s", "server: processor, s"}
    ):
        first, last = growth(rows, name)
        lines.append(f"{name}: {first:.0f} in the first third, {last:.0f} in the last")
    for name in ("run: processor, s", "time, s"):
        taken = speeds(rows, name)
        third = max(1, len(taken) // 3)
        first, last = (sum(part) / len(part) for part in (taken[:third], taken[-third:]))
        lines.append(
            f"{name}, per update: {first:.3f} in the first third, {last:.3f} in the last ({first / last:.1%})"
        )
    records = read_metrics(folder / "metrics.jsonl")
    for name in sorted({name for record in records for name in record} & COUNTED):
        lines.append(
            f"{name}: {sum(record.get(name) or 0 for record in records):g} over all updates"
        )
    return lines


def draw(rows: Sequence[dict[str, float]], path: Path) -> None:
    """Draw what was measured, a panel each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = {
        "memory, MiB": ["run: memory, MiB", "server: memory, MiB"],
        "open files": ["run: open files", "server: open files"],
        "threads": ["run: threads", "server: threads"],
        "processes and temporary files": ["processes under the run", "temporary files"],
    }
    updates = [row["updates"] for row in rows]
    figure, axes = plt.subplots(1, len(panels) + 1, figsize=(16, 3), layout="constrained")
    for axis, (title, names) in zip(axes, panels.items(), strict=False):
        for name in names:
            axis.plot(updates, [row[name] for row in rows], label=name.partition(":")[0])
        axis.set(title=title, xlabel="updates", ylim=(0, None))
        axis.legend(fontsize=7)
    axes[-1].plot(updates[1:], speeds(rows, "run: processor, s"), label="processor")
    axes[-1].plot(updates[1:], speeds(rows, "time, s"), label="clock")
    axes[-1].set(title="seconds per update", xlabel="updates", ylim=(0, None))
    axes[-1].legend(fontsize=7)
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> None:
    """Run, write and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="updates between two measurements")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/soak"))
    args = parser.parse_args(argv)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start = time.monotonic()
    rows = soak(args.output_dir.resolve(), args.updates, args.every, port)
    (args.output_dir / "soak.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    draw(rows, args.output_dir / "soak.png")
    print(f"{updates_of(args.output_dir)} updates in {time.monotonic() - start:.0f} s")
    print("\n".join(summary(args.output_dir, rows)))


if __name__ == "__main__":
    main()
