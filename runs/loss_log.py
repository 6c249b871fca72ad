"""Print the loss of a run, mean over every 100 steps, as CSV: python runs/loss_log.py RUN [ANOTHER THAT GOES ON]..."""

import sys
from pathlib import Path
from statistics import mean

from jaxppo.run.jsonl import read_metrics

print("step,loss")
done = 0
for run in map(Path, sys.argv[1:]):
    records = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    for end in range(100, len(records) + 1, 100):
        print(
            f"{done + records[end - 1]['step']},{mean(record['loss'] for record in records[end - 100 : end]):.4f}"
        )
    done += len(records)
