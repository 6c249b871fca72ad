"""Which change is found, with a compiler whose answers are a formula."""

import pytest

from jaxppo.config import TrainConfig
from jaxppo.config.sources import replace
from jaxppo.profiling import aot, fitting
from jaxppo.profiling.counts import Count

GIB = 2**30
CONFIG = replace(TrainConfig(), batch_size=32, num_mini_batches=1, total_episodes=64)


class Devices:
    def __init__(self, number):
        self.num_devices = number


def plan_of(config, devices=1, rows=32, activations=32, scoring=1.0):
    """Held: 8 GiB, a quarter with adapters; activations halve with each doubling of parts."""
    split = devices if config.run.parallel == "fsdp" else 1
    held = 8 * GIB // split // (4 if config.peft.use_peft else 1)
    parts = config.rl.gradient_accumulation_steps or 1
    scored = config.rl.local_rollout_forward_batch_size or rows
    of_update = 1 * GIB + activations * GIB // parts // (4 if config.gradient_checkpointing else 1)
    stages = {"score": int(scoring * GIB * scored / rows), "update": of_update}
    return aot.Plan(Devices(devices), stages, held, parts=parts, most_parts=rows, scored=scored)


@pytest.fixture
def found(monkeypatch):
    """`smallest_change` for a plan of the formula, and what it printed."""

    def compiled(plan):
        for name, size in plan.stages.items():
            yield name, aot.Compiled(0.0, 0, size, size, size, Count())

    monkeypatch.setattr(aot, "compile_plan", compiled)

    def find(memory_gib, config=CONFIG, **about):
        lines = []
        build = lambda config: plan_of(config, **about)  # noqa: E731
        measured = fitting.Measured(build(config), dict(compiled(build(config))))
        assert not measured.fits(int(memory_gib * GIB))
        change = fitting.smallest_change(config, measured, int(memory_gib * GIB), build, lines.append)
        if change is None:
            return None, lines
        flags, fitting_plan = change
        assert fitting_plan.fits(int(memory_gib * GIB))
        return fitting.describe(flags), lines

    return find


@pytest.mark.parametrize(
    ("memory_gib", "about", "change"),
    [
        # The fewest micro-batches come first.
        (18, {}, "--gradient_accumulation_steps 4"),  # 8 + 1 + 8
        (10.1, {}, "--gradient_accumulation_steps 32"),
        (12, {"scoring": 16.0}, "--gradient_accumulation_steps 16 --local_rollout_forward_batch_size 8"),
        # Recomputation where rows cannot be cut further.
        (14, {"rows": 2}, "--gradient_checkpointing --gradient_accumulation_steps 2"),
        (10, {"rows": 2}, "--gradient_checkpointing --use_peft --gradient_accumulation_steps 2"),
        # The mesh comes before adapters.
        (7, {}, "--use_peft --gradient_accumulation_steps 8"),
        (7, {"devices": 4}, "--parallel fsdp --gradient_accumulation_steps 8"),
    ],
)
def test_the_smallest_change_that_fits_is_found(found, memory_gib, about, change):
    described, lines = found(memory_gib, **about)
    assert described == change
    assert lines[-1].endswith("fits") and not any(line.endswith(" fits") for line in lines[:-1])
    assert ("8.00 GiB" in lines[0]) == (memory_gib == 7)  # what is held throughout alone


def test_nothing_helps_where_what_is_held_is_too_much_or_the_compiler_refuses(found):
    change, lines = found(1)
    assert change is None and len(lines) == 4
    stage = aot.Compiled(0.0, 0, 0, 0, 0, Count(), refused="RESOURCE_EXHAUSTED")
    assert not fitting.Measured(plan_of(CONFIG), {"update": stage}).fits(2**60)
