"""Runs of `python -m jaxppo.train` that send themselves a signal in a stage of an update."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.commands import run_code
from tests.one_layer import ONE_LAYER

UPDATES = 4
# Whatever an update hands to the next one beside the models changes in these runs: KL coefficient, score moments.
TINY = ["--preset", "tiny", "--kl_target", "6"]
TINY += ["--score_scaling", "norm", "--num_sample_generations", "4"]
TINY += ["--sizes", "test=4:4", "test_longer=5:4", "--save_steps", "2", "--save_total_limit", "2"]
TINY += ["--sft_model_path", ONE_LAYER]
TINY += ["--response_length", "16"]  # so short that all sequences have one length, for which programs are compiled

_RUN = """
import json, os, signal, sys, threading
from jaxppo.run import checkpoints as checkpoint, cli, preemption
from jaxppo import config, rewards, train
from jaxppo.config import sources as config_sources
from jaxppo.rl import learner

stage, update, signum, delay_s, checks = json.loads(sys.argv.pop(1))
current = []

def strike():
    os.kill(os.getpid(), signum)

def in_update(stage_function):
    def patched(*args, **kwargs):
        if current != [update]:
            return stage_function(*args, **kwargs)
        if signum == signal.SIGKILL:
            threading.Timer(delay_s, strike).start()
        result = stage_function(*args, **kwargs)
        strike()
        if checks:
            preemption.check()
        return result
    return patched

def save(self, step, *args, **kwargs):
    begin_to_save(self, step, *args, **kwargs)
    if step == update + 1:
        threading.Timer(delay_s, strike).start()

def train_step(training, state, host, step):
    current[:] = [step]
    done = one_step(training, state, host, step)
    current.clear()
    return done

one_step, train.train_step = train.train_step, train_step
if stage == "save":
    begin_to_save, checkpoint.Checkpoints.save = checkpoint.Checkpoints.save, save
if stage == "rollout":
    learner.Learner.generate = in_update(learner.Learner.generate)
if stage == "reward":
    rewards.Rewards.__call__ = in_update(rewards.Rewards.__call__)
if stage == "update":
    learner.Learner.update = in_update(learner.Learner.update)
cli.main(lambda: train.train(config_sources.parse_cli(config.TrainConfig, "train")))
"""


def run_struck(
    folder: Path,
    stage: str,
    update: int,
    signum: int,
    delay_s: float = 0.0,
    checks: bool = False,
    flags: Sequence[str] = (),
) -> tuple[int, str, str]:
    """Run `python -m jaxppo.train` on one device: status, standard output, standard error.

    Args:
        folder: of the run.
        stage: `rollout`, `reward`, `update`, or `save`: while the checkpoint is written; any other for no signal.
        update: number of the update, from 0.
        signum: the signal; SIGKILL comes while the stage is carried out, others when it has just ended.
        delay_s: time from the beginning of the stage to SIGKILL.
        checks: whether the run is asked after the stage if it has to stop, as it is between stages.
        flags: of the command, beside those of all of these runs.
    """
    spec = json.dumps([stage, update, int(signum), delay_s, checks])
    return run_code(_RUN, spec, *TINY, *flags, "--output_dir", folder)
