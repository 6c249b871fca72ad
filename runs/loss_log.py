"""Print the loss of a run, mean over every 100 steps, as CSV: python runs/loss_log.py RUN."""

import sys
from pathlib import Path
from statistics import mean

from jaxppo.run.jsonl import read_metrics

records = [record for record in read_metrics(Path(sys.argv[1]) / "metrics.jsonl") if "loss" in record]
print("step,loss")
for end in range(100, len(records) + 1, 100):
    print(f"{records[end - 1]['step']},{mean(record['loss'] for record in records[end - 100 : end]):.4f}")
