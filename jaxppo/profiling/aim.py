"""`--target`: compile the programs of a command for an accelerator that may be absent, and say what they take."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxppo.profiling import aot, fitting, roofline, targets
from jaxppo.profiling.fitting import Measured
from jaxppo.profiling.roofline import Roofline
from jaxppo.profiling.targets import GB, GIB, TERA, Target
from jaxppo.run.console import Console

MOST_OF_GPU = 0.95
"""Largest share of a GPU's memory that JAX is advised to take."""

MEMORY_COLUMNS = ("program", "compile s", "arguments", "temporaries", "on the device", "of memory")
COST_COLUMNS = (
    "program",
    "TFLOP",
    "GB moved",
    "GB sent",
    "compute ms",
    "memory ms",
    "network ms",
    "binds",
)


def show(console: Console, config: Any, build: Callable[[Any, list[Any]], aot.Plan]) -> None:
    """Compile the programs that a configuration asks for and print what they take, and what would make them fit.

    With `quiet` the last line is one JSON object, and nothing is tried beside the configuration as it is.

    Args:
        console: where to print.
        config: of the command, with `run.target`.
        build: (configuration, devices of the target) -> programs; may be called again with other settings.

    Raises:
        ConfigError: there is no such target, its compiler is not installed, or the settings do not fit its devices.
    """
    target = targets.find(config.run.target)
    with aot.aiming_at(target):
        devices = aot.devices_of(target)
        memory_bytes = aot.memory_of(target)  # of one device; so are all figures below
        console.stage(f"Compiling for {target.name}: {target.devices} x {devices[0].device_kind}")
        plan = build(config, devices)
        measured = Measured(plan, {})
        for name, compiled in aot.compile_plan(plan):
            measured.stages[name] = compiled
            console.print(f"{name}: {compiled.compile_s:,.1f} s to compile")
        mesh_sizes = dict(measured.plan.parallel.mesh.shape)
        rooflines = {
            name: roofline.of(stage, target, mesh_sizes, config.dtype)
            for name, stage in measured.stages.items()
        }
        if config.run.quiet:
            console.result(json.dumps(as_json(target, measured, rooflines, memory_bytes)))
            return
        _print_tables(console, target, measured, rooflines, memory_bytes)
        console.result(
            _verdict(console, config, measured, memory_bytes, lambda other: build(other, devices))
        )


def as_json(
    target: Target, measured: Measured, rooflines: Mapping[str, Roofline], memory_bytes: int
) -> dict[str, Any]:
    """Return the contract of `--quiet True`: bytes on one device."""
    programs = {}
    for name, stage in measured.stages.items():
        # What the budget by arithmetic says of the same memory; evaluations and steps on fixed rows
        # have none here.
        budget_bytes = measured.plan.expected.get(name)
        programs[name] = {
            "compile_s": round(stage.compile_s, 2),
            "argument_bytes": stage.argument_bytes,
            "temp_bytes": stage.temp_bytes,
            "peak_bytes": stage.peak_bytes,
            "device_bytes": measured.on_device(name),
            "expected_bytes": None
            if budget_bytes is None
            else measured.plan.held_bytes + budget_bytes,
            "flops": stage.counted.flops,
            "bytes": stage.counted.bytes,
            "sent_bytes": _by_axes(stage),
            "estimate": rooflines[name]._asdict() | {"binds": rooflines[name].binds},
        }
    slowest = max(rooflines.values(), key=lambda roofline: roofline.seconds)
    return {
        "target": target.name,
        "fits": measured.fits(memory_bytes),
        "memory_bytes": memory_bytes,
        "held_bytes": measured.plan.held_bytes,
        "estimate": {
            "seconds": sum(line.seconds for line in rooflines.values()),
            "binds": slowest.binds,
        },
        "programs": programs,
    }


def _by_axes(stage: aot.Compiled) -> dict[str, float]:
    return {f"{kind} over {','.join(axes)}": size for (kind, axes), size in stage.sent.items()}


def _print_tables(
    console: Console,
    target: Target,
    measured: Measured,
    rooflines: Mapping[str, Roofline],
    memory_bytes: int,
) -> None:
    stages = measured.stages
    rows = [
        {
            "program": name,
            "compile s": f"{stage.compile_s:,.1f}",
            "arguments": _amount(stage.argument_bytes / GIB),
            "temporaries": _amount(stage.temp_bytes / GIB),
            "on the device": _amount(measured.on_device(name) / GIB),
            "of memory": f"{measured.on_device(name) / memory_bytes:.0%}",
        }
        for name, stage in stages.items()
    ]
    console.result_table(
        f"memory of each device in GiB, by the compiler of {target.name}; {measured.plan.held_bytes / GIB:,.2f} are "
        f"held throughout, {memory_bytes / GIB:,.2f} are available",
        rows,
        MEMORY_COLUMNS,
    )
    costs = [
        {
            "program": name,
            "TFLOP": _amount(stage.counted.flops / TERA),
            "GB moved": _amount(stage.counted.bytes / GB),
            "GB sent": _amount(sum(stage.sent.values()) / GB),
            "compute ms": _amount(1e3 * rooflines[name].compute_s),
            "memory ms": _amount(1e3 * rooflines[name].memory_s),
            "network ms": _amount(1e3 * rooflines[name].network_s),
            "binds": rooflines[name].binds,
        }
        for name, stage in stages.items()
    ]
    seconds = sum(line.seconds for line in rooflines.values())
    title = f"each device does, and would take at least by published peaks (an estimate): {seconds:,.3g} s in all"
    console.result_table(title, costs, COST_COLUMNS)
    for name, stage in stages.items():
        if stage.sent:
            amounts = [
                f"{collective} {size / GB:,.3g} GB" for collective, size in _by_axes(stage).items()
            ]
            console.result(f"{name} sends: {'; '.join(amounts)}")
        if stage.refused is not None:
            console.result(f"{name}: the compiler says: {stage.refused}")


def _verdict(
    console: Console, config: Any, measured: Measured, memory_bytes: int, build: fitting.Build
) -> str:
    """Say in one sentence whether a run fits, and what would make it fit."""
    fullest = measured.fullest
    amount = f"{measured.on_device(fullest) / GIB:,.2f} of {memory_bytes / GIB:,.2f} GiB"
    if measured.fits(memory_bytes):
        return f"it fits: {fullest} takes most, {amount} on each device"
    # The cheapest help comes first: JAX leaves a quarter of a GPU to others unless a variable says
    # otherwise.
    target = targets.find(config.run.target)
    largest_share = int(target.chip.memory_bytes * MOST_OF_GPU)
    if target.platform == "gpu" and largest_share > memory_bytes and measured.fits(largest_share):
        variable = f"the environment variable {aot.gpu_fraction_variable()}={MOST_OF_GPU}"
        return f"it does not fit: {fullest} takes {amount} on each device; {variable} makes it fit"
    change = fitting.smallest_change(config, measured, memory_bytes, build, console.print)
    if change is None:
        return f"it does not fit: {fullest} takes {amount} on each device, and no change that was tried makes it fit"
    changed = change.measured
    outcome = (
        f"{changed.fullest} then takes most, {changed.on_device(changed.fullest) / GIB:,.2f} GiB"
    )
    flags = fitting.describe(change.flags)
    return f"it does not fit: {fullest} takes {amount} on each device; {flags} makes it fit ({outcome})"


def _amount(number: float) -> str:
    """Write a number with two decimals, and a small one with two digits."""
    return f"{number:,.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"
