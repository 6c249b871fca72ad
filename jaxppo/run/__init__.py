"""The life of a run: folder, checkpoints, logs, metrics, trackers, console, and the loop around every training step.

In: a step function and its settings. Out: a run folder that can be resumed.
"""

__all__ = [
    "activity",
    "alarms",
    "checkpoints",
    "cli",
    "console",
    "folder",
    "headline",
    "jsonl",
    "lock",
    "loop",
    "made_once",
    "metrics",
    "preemption",
    "stages",
    "trackers",
    "trends",
]
