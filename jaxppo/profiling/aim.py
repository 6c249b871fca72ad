"""`--target`: compile the programs of a command for an accelerator that may be absent, and say what they take."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from jaxppo.profiling import aot, targets
from jaxppo.profiling.roofline import estimate
from jaxppo.profiling.targets import GB, GIB, TERA, Target
from jaxppo.run.console import Console


def show(console: Console, config: Any, build: Callable[[list[Any]], aot.Plan]) -> None:
    """Compile the programs that a configuration asks for and print what they take, and whether they fit.

    With `quiet` the last line is one JSON object.

    Args:
        console: where to print.
        config: of the command, with `run.target`.
        build: devices of the target -> programs.

    Raises:
        ConfigError: there is no such target, its compiler is not installed, or the settings do not fit its devices.
    """
    target = targets.find(config.run.target)
    with aot.aiming_at(target):
        devices = aot.devices_of(target)
        memory_bytes = aot.memory_of(target)  # of one device; so are all figures below
        console.stage(f"Compiling for {target.name}: {target.devices} x {devices[0].device_kind}")
        plan = build(devices)
        stages = {}
        for name, compiled in aot.compile_plan(plan):
            stages[name] = compiled
            console.print(f"{name}: {compiled.compile_s:,.1f} s to compile")
    report = as_json(target, plan, stages, memory_bytes, config.dtype)
    if config.run.quiet:
        console.result(json.dumps(report))
        return
    _print_tables(console, report)
    for name, compiled in stages.items():
        if compiled.refused is not None:
            console.result(f"{name}: the compiler says: {compiled.refused}")
    console.result(_verdict(report))


def as_json(
    target: Target,
    plan: aot.Plan,
    stages: Mapping[str, aot.Compiled],
    memory_bytes: int,
    dtype: str,
) -> dict[str, Any]:
    """Return the contract of `--quiet True`: bytes on one device."""
    mesh_sizes = dict(plan.parallel.mesh.shape)
    rooflines = []
    programs = {}
    fits = True
    for name, stage in stages.items():
        # What other stages hold meanwhile is on the device, too.
        device_bytes = plan.held_bytes + stage.added_bytes
        fits = fits and stage.refused is None and device_bytes <= memory_bytes
        roofline = estimate(stage.counted, target, mesh_sizes, dtype)
        rooflines.append(roofline)
        programs[name] = {
            "compile_s": round(stage.compile_s, 2),
            "argument_bytes": stage.argument_bytes,
            "temp_bytes": stage.temp_bytes,
            "peak_bytes": stage.peak_bytes,
            "device_bytes": device_bytes,
            # What the budget by arithmetic says of the same memory
            "expected_bytes": plan.held_bytes + plan.budget[name],
            "flops": stage.counted.flops,
            "bytes": stage.counted.bytes,
            "sent_bytes": {
                f"{kind} over {','.join(axes)}": size
                for (kind, axes), size in stage.counted.sent.items()
            },
            "estimate": roofline._asdict() | {"binds": roofline.binds},
        }
    slowest = max(rooflines, key=max)
    return {
        "target": target.name,
        "fits": fits,
        "memory_bytes": memory_bytes,
        "held_bytes": plan.held_bytes,
        "estimate": {"seconds": sum(map(max, rooflines)), "binds": slowest.binds},
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


def _verdict(report: Mapping[str, Any]) -> str:
    """Say in one sentence whether a run fits, and which settings lower its memory."""
    programs = report["programs"]
    fullest = max(programs, key=lambda name: programs[name]["device_bytes"])
    amount = (
        f"{programs[fullest]['device_bytes'] / GIB:,.2f} of {report['memory_bytes'] / GIB:,.2f} GiB "
        "on each device"
    )
    if report["fits"]:
        return f"it fits: {fullest} takes most, {amount}"
    # JAX leaves a quarter of a GPU to others.
    is_gpu = report["target"].startswith("gpu")
    share = "; XLA_CLIENT_MEM_FRACTION=0.95 lets JAX take more of the GPU" if is_gpu else ""
    return (
        f"it does not fit: {fullest} takes {amount}; settings that take less: --gradient_accumulation_steps, "
        f"--gradient_checkpointing, --parallel fsdp, --use_peft{share}"
    )


def _amount(number: float) -> str:
    """Write a number with two decimals, and a small one with two digits."""
    return f"{number:,.2f}" if number >= 0.1 or number == 0 else f"{number:.2g}"
