"""One folder per planning domain: its `domain.pddl` and its problem generator.

Every module has `DOMAIN_PDDL`, `NAMES` (all object names that its problems may use), `POOLS` (the same by type or kind
of object), `generate_problem(size, rng, name)`, and three ranges of sizes: `SIZES` (all), `TRAIN_SIZES` and
`LARGER_SIZES` (those of larger test problems).
"""

from types import ModuleType

from jaxppo.planning.domains import (
    blocksworld,
    childsnack,
    depots,
    driverlog,
    ferry,
    gripper,
    hanoi,
    logistics,
    miconic,
    satellite,
    storage,
    visitall,
)

__all__ = ["DOMAINS", "blocksworld", "phrases"]

DOMAINS: dict[str, ModuleType] = {
    "blocksworld": blocksworld,
    "childsnack": childsnack,
    "depots": depots,
    "driverlog": driverlog,
    "ferry": ferry,
    "gripper": gripper,
    "hanoi": hanoi,
    "logistics": logistics,
    "miconic": miconic,
    "satellite": satellite,
    "storage": storage,
    "visitall": visitall,
}
