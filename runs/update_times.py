"""Print the seconds of an update of runs, medians over all but the first two: `python runs/update_times.py RUN ...`."""

import sys
from pathlib import Path
from statistics import median

from jaxppo.run.jsonl import read_metrics

STAGES = ("rollout", "reward", "reward_wait", "overlap", "update")


def row(folder: Path) -> str:
    """One line: the whole update, then what its stages took."""
    records = read_metrics(folder / "metrics.jsonl")[2:]
    episodes = records[1]["episode"] - records[0]["episode"]
    whole = median(episodes / record["throughput/samples_per_s"] for record in records)
    stages = (median(record.get(f"time/{name}_s", 0.0) for record in records) for name in STAGES)
    return f"{folder.name}: {whole:.2f} s  " + "  ".join(
        f"{n} {s:.2f}" for n, s in zip(STAGES, stages, strict=True)
    )


if __name__ == "__main__":
    print("\n".join(row(Path(folder)) for folder in sys.argv[1:]))
