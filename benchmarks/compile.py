"""Seconds from nothing to the first update of the default run: with an empty compilation cache, and with a filled one.

    python benchmarks/compile.py --turns 3

Each start is a process of its own that does what `python -m jaxppo.train` does before and in its first update: imports,
loads model and data, samples, scores, learns. The evaluation before training is left out. Cold and warm starts take
turns, every cold one with an empty folder for the cache, which the warm one after it then finds filled. The last line
is one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def first_update(preset: str | None, began: float) -> None:
    """The process that is timed; prints the seconds since `began`, a time of the epoch, at each milestone."""
    times = {}

    def milestone(name: str) -> None:
        times[name] = round(time.time() - began, 3)

    from jaxppo import train
    from jaxppo.config import TrainConfig
    from jaxppo.config.sources import parse_cli
    from jaxppo.run import cli
    from jaxppo.run.folder import Run

    milestone("imported")

    def start() -> None:
        import jax

        sys.argv[1:] = ["--quiet"] + (["--preset", preset] if preset else [])
        config = parse_cli(TrainConfig, "train")
        with tempfile.TemporaryDirectory() as folder:
            setup, start = train.set_up(
                Run(command="train", config=config, folder=Path(folder) / "run")
            )
            state = setup.learner.init_state(*start)
            reference = setup.learner.reference(state, start.policy)
            milestone("loaded")
            with setup.training(reference) as training:
                step = train.train_step(training, state, None, 0)
            jax.block_until_ready(step.state)
        milestone("updated")

    cli.main(start)
    print("TIMES " + json.dumps(times))


def run_start(preset: str | None, cache: str) -> dict[str, float]:
    """Seconds to the milestones of one start."""
    environment = os.environ | {"JAXPPO_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "--began", str(time.time())] + (
        ["--preset", preset] if preset else []
    )
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TIMES "))
    return json.loads(line.removeprefix("TIMES "))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", help="default: the default run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.began is not None:
        first_update(args.preset, args.began)
        return
    starts: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for turn in range(args.turns):
        with tempfile.TemporaryDirectory() as cache:
            for kind, times in starts.items():
                times.append(run_start(args.preset, cache))
                print(f"turn {turn} {kind} {times[-1]}", file=sys.stderr, flush=True)
    line: dict[str, object] = {"preset": args.preset or "default", "turns": args.turns}
    for kind, times in starts.items():
        for name in times[0]:
            line[f"{kind}_{name}_s"] = round(statistics.median(time[name] for time in times), 2)
    ratios = [
        warm["updated"] / cold["updated"]
        for cold, warm in zip(starts["cold"], starts["warm"], strict=True)
    ]
    print(json.dumps(line | {"warm_over_cold": round(statistics.median(ratios), 3)}), flush=True)


if __name__ == "__main__":
    main()
