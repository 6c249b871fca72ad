"""`--target`: compile the programs of a command for an accelerator that may be absent, and say what they take."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxppo.profiling import aot, fitting, targets
from jaxppo.profiling.fitting import Measured
from jaxppo.profiling.roofline import estimate
from jaxppo.profiling.targets import GB, GIB, TERA, Target
from jaxppo.run.console import Console

MOST_OF_GPU = 0.95
"""Largest share of a GPU's memory that JAX is advised to take."""


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
        report = as_json(target, measured, memory_bytes, config.dtype)
        if config.run.quiet:
            console.result(json.dumps(report))
            return
        _print_tables(console, report)
        for name, compiled in measured.stages.items():
            if compiled.refused is not None:
                console.result(f"{name}: the compiler says: {compiled.refused}")
        console.result(
            _verdict(
                console, config, measured, memory_bytes, lambda changed: build(changed, devices)
            )
        )


def as_json(target: Target, measured: Measured, memory_bytes: int, dtype: str) -> dict[str, Any]:
    """Return the contract of `--quiet True`: bytes on one device."""
    plan = measured.plan
    mesh_sizes = dict(plan.parallel.mesh.shape)
    rooflines = []
    programs = {}
    for name, stage in measured.stages.items():
        # What the budget by arithmetic says of the same memory;
        # evaluations and steps on fixed rows have none here.
        budget_bytes = plan.budget.get(name)
        roofline = estimate(stage.counted, target, mesh_sizes, dtype)
        rooflines.append(roofline)
        programs[name] = {
            "compile_s": round(stage.compile_s, 2),
            "argument_bytes": stage.argument_bytes,
            "temp_bytes": stage.temp_bytes,
            "peak_bytes": stage.peak_bytes,
            "device_bytes": measured.on_device(name),
            "expected_bytes": None if budget_bytes is None else plan.held_bytes + budget_bytes,
            "flops": stage.counted.flops,
            "bytes": stage.counted.bytes,
            "sent_bytes": {
                f"{kind} over {','.join(axes)}": size
                for (kind, axes), size in stage.counted.sent.items()
            },
            "estimate": roofline._asdict() | {"binds": roofline.binds},
        }
    seconds = [max(roofline) for roofline in rooflines]
    slowest = rooflines[seconds.index(max(seconds))]
    return {
        "target": target.name,
        "fits": measured.fits(memory_bytes),
        "memory_bytes": memory_bytes,
        "held_bytes": plan.held_bytes,
        "estimate": {"seconds": sum(seconds), "binds": slowest.binds},
        "programs": programs,
    }


def _print_tables(console: Console, report: Mapping[str, Any]) -> None:
    """Print what `as_json` says of the programs: their memory, and their least time."""
    memory_rows = []
    cost_rows = []
    for name, program in report["programs"].items():
        estimates = program["estimate"]
        memory_rows.append(
            {
                "program": name,
                "compile s": _amount(program["compile_s"]),
                "arguments": _amount(program["argument_bytes"] / GIB),
                "temporaries": _amount(program["temp_bytes"] / GIB),
                "on the device": _amount(program["device_bytes"] / GIB),
                "of memory": f"{program['device_bytes'] / report['memory_bytes']:.0%}",
            }
        )
        cost_rows.append(
            {
                "program": name,
                "TFLOP": _amount(program["flops"] / TERA),
                "GB moved": _amount(program["bytes"] / GB),
                "GB sent": _amount(sum(program["sent_bytes"].values()) / GB),
                "compute ms": _amount(1e3 * estimates["compute_s"]),
                "memory ms": _amount(1e3 * estimates["memory_s"]),
                "network ms": _amount(1e3 * estimates["network_s"]),
                "binds": estimates["binds"],
            }
        )
    console.result_table(
        f"memory of each device in GiB, by the compiler of {report['target']}; {_amount(report['held_bytes'] / GIB)} "
        f"are held throughout, {_amount(report['memory_bytes'] / GIB)} are available",
        memory_rows,
        tuple(memory_rows[0]),
    )
    console.result_table(
        "each device does, and would take at least by published peaks (an estimate): "
        f"{report['estimate']['seconds']:,.3g} s in all",
        cost_rows,
        tuple(cost_rows[0]),
    )


def _verdict(
    console: Console, config: Any, measured: Measured, memory_bytes: int, build: fitting.Build
) -> str:
    """Say in one sentence whether a run fits, and what would make it fit."""
    fullest = measured.fullest
    amount = (
        f"{measured.on_device(fullest) / GIB:,.2f} of {memory_bytes / GIB:,.2f} GiB on each device"
    )
    if measured.fits(memory_bytes):
        return f"it fits: {fullest} takes most, {amount}"
    refusal = f"it does not fit: {fullest} takes {amount}"
    # The cheapest help comes first: JAX leaves a quarter
    # of a GPU to others unless a variable says otherwise.
    target = targets.find(config.run.target)
    largest_share = int(target.chip.memory_bytes * MOST_OF_GPU)
    if target.platform == "gpu" and largest_share > memory_bytes and measured.fits(largest_share):
        return f"{refusal}; the environment variable {aot.gpu_fraction_variable()}={MOST_OF_GPU} makes it fit"
    change = fitting.smallest_change(config, measured, memory_bytes, build, console.print)
    if change is None:
        return f"{refusal}, and no change that was tried makes it fit"
    flags, changed = change
    changed_bytes = changed.on_device(changed.fullest)
    return (
        f"{refusal}; {fitting.describe(flags)} makes it fit ({changed.fullest} then takes most, "
        f"{changed_bytes / GIB:,.2f} GiB)"
    )


def _amount(number: float) -> str:
    """Write a number with two decimals, and a small one with two digits."""
    return f"{number:,.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"
