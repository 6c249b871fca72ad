"""What would make a run fit on a target: the smallest change of its settings, found by compiling again."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxppo.config.sources import flatten, replace
from jaxppo.errors import ConfigError
from jaxppo.profiling import aot
from jaxppo.profiling.targets import GIB

Build = Callable[[Any], aot.Plan]
"""Configuration of a command -> its programs on the target."""


class Measured(NamedTuple):
    """A plan with what its compiler says."""

    plan: aot.Plan
    stages: dict[str, aot.Compiled]

    def on_device(self, name: str) -> int:
        """Return the bytes on a device while a stage runs, what other stages hold included."""
        return self.plan.held_bytes + self.stages[name].added_bytes

    @property
    def fullest(self) -> str:
        """The stage that takes most."""
        return max(self.stages, key=self.on_device)

    def too_big(self, memory_bytes: int) -> list[str]:
        """Return the stages that do not fit into the memory of a device."""
        return [
            name
            for name, stage in self.stages.items()
            if stage.refused is not None or self.on_device(name) > memory_bytes
        ]

    def fits(self, memory_bytes: int) -> bool:
        """Return whether all stages fit into the memory of a device."""
        return not self.too_big(memory_bytes)


def describe(flags: Mapping[str, Any]) -> str:
    """Write settings as flags of a command line."""
    return " ".join(
        f"--{name}" if value is True else f"--{name} {value}" for name, value in flags.items()
    )


def smallest_change(
    config: Any, measured: Measured, memory_bytes: int, build: Build, tell: Callable[[str], None]
) -> tuple[dict[str, Any], Measured] | None:
    """Find the first change that makes a run fit, of those that leave its numbers as they are before the others.

    Beside each of the changes of `_bases` the fewest parts are looked for; even single rows may be too many.

    Args:
        config: of the command.
        measured: what it takes now, too much.
        memory_bytes: of a device.
        build: makes the programs of another configuration.
        tell: called with a line for each change that is tried.

    Returns:
        The other settings, and what they lead to; None where nothing helps.
    """
    for flags in _bases(config, measured.plan.parallel.num_devices):
        # As it is, the run is compiled already.
        tried = None if flags else measured
        while True:
            prefix = f"with {describe(flags)}: " if flags else ""
            try:
                plan = build(replace(config, **flags)) if tried is None else tried.plan
            except ConfigError as error:  # a combination that this run cannot have
                tell(f"{prefix}{error}")
                break
            # No number of parts helps where the weights alone
            # are too many, and compiling takes minutes.
            if plan.held_bytes >= memory_bytes:
                amount = f"{plan.held_bytes / GIB:,.2f} GiB"
                tell(f"{prefix}what is held throughout alone takes {amount}")
                break
            if tried is None:
                tried = Measured(plan, dict(aot.compile_plan(plan)))
                outcome = "fits" if tried.fits(memory_bytes) else "does not fit"
                most_bytes = tried.on_device(tried.fullest)
                tell(f"{prefix}{tried.fullest} takes {most_bytes / GIB:,.2f} GiB: {outcome}")
            too_big = tried.too_big(memory_bytes)
            if not too_big:
                return flags, tried
            if "update" in too_big and plan.parts < plan.most_parts:
                flags["gradient_accumulation_steps"] = _more_parts(tried, memory_bytes)
                too_big.remove("update")
            if "score" in too_big and plan.scored > 1:
                flags["local_rollout_forward_batch_size"] = plan.scored // 2
                too_big.remove("score")
            # Anything else, such as sampling, has no setting here that would make it smaller.
            if too_big:
                break
            tried = None
    return None


def _bases(config: Any, devices: int) -> Iterator[dict[str, Any]]:
    """Yield settings beside the number of parts: recomputation, more devices to split over, adapters.

    Adapters change what is learned, so they come last; the others leave the numbers of a run as they are.
    """
    settings = flatten(config)
    # The last choice varies fastest.
    choices: list[list[dict[str, Any]]] = []
    if settings.get("use_peft") is False:
        choices.append([{}, {"use_peft": True}])
    if settings["parallel"] != "fsdp" and devices > 1:
        choices.append([{}, {"parallel": "fsdp"}])
    if settings.get("gradient_checkpointing") is False:
        choices.append([{}, {"gradient_checkpointing": True}])
    for chosen in itertools.product(*choices):
        flags: dict[str, Any] = {}
        for choice in reversed(chosen):
            flags |= choice
        yield flags


def _more_parts(measured: Measured, memory_bytes: int) -> int:
    """Return the next number of parts to try.

    Of what an update adds, some shrinks with its parts and some stays, as a gradient does. If all of it shrank, these
    would be the parts to take: fewer cannot do, and compiling them would be lost time.
    """
    plan = measured.plan
    available = memory_bytes - plan.held_bytes
    shrinking = plan.parts * measured.stages["update"].added_bytes / available
    fewest = max(2 * plan.parts, shrinking)
    return next(
        parts
        for parts in range(plan.parts + 1, plan.most_parts + 1)
        if plan.most_parts % parts == 0 and (parts >= fewest or parts == plan.most_parts)
    )
