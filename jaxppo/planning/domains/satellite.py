"""Random Satellite problems."""

import random

from jaxppo.planning.domains.problems import check_count, draw_count, numbered, write_problem

POOLS = {
    "satellite": numbered("satellite", 3),
    "instrument": numbered("instrument", 6),
    "mode": ("infrared", "optical", "radio", "thermal", "xray"),
    "direction": (*numbered("star", 8), *numbered("planet", 8)),
}
"""Type to the names that its objects may have; each is one word of a word-level tokenizer."""
NAMES = tuple(name for pool in POOLS.values() for name in pool)
SIZES = range(1, 13)
"""Numbers of images."""
TRAIN_SIZES = range(1, 9)
"""Those of training problems: most have plans of 3 to 16 steps."""
LARGER_SIZES = range(9, 13)
"""Those of larger test problems: most have plans of at most 40 steps."""


def generate_problem(
    n_images: int,
    rng: random.Random,
    name: str,
    *,
    n_satellites: int | None = None,
    n_modes: int | None = None,
    n_directions: int | None = None,
) -> str:
    """Write a random problem.

    Which images are wanted, where satellites point and (for some) must point in the end, which instrument is on board
    of which satellite, its modes and calibration target, all numbers, names and order vary. It is solvable: every mode
    has an instrument, which can be switched on (after switching off another one), calibrated, and turned to any
    direction; pointing goals come last.

    Args:
        n_images: 1 to 12.
        rng: the only source of randomness.
        name: the problem's name.
        n_satellites: 1 to 3; drawn, at most `1 + n_images // 3`, where None.
        n_modes: 1 to 5; drawn, at most `1 + n_images // 2`, where None.
        n_directions: `n_images + 1` to 16; drawn from `n_images + 1` to `n_images + 3` where None.

    Returns:
        PDDL text.

    Raises:
        ConfigError: a number is out of range.
    """
    check_count("n_images", n_images, SIZES)
    few = n_images + 1
    satellites = rng.sample(
        POOLS["satellite"], draw_count("n_satellites", n_satellites, range(1, 4), 1 + n_images // 3, rng)
    )
    modes = rng.sample(POOLS["mode"], draw_count("n_modes", n_modes, range(1, 6), 1 + n_images // 2, rng))
    directions = rng.sample(POOLS["direction"], draw_count("n_directions", n_directions, range(few, 17), few + 2, rng))
    supports = _draw_supports(modes, len(satellites), rng)
    carriers = [*satellites, *rng.choices(satellites, k=len(supports) - len(satellites))]
    init = [
        *(f"(on_board {instrument} {carrier})" for instrument, carrier in zip(supports, carriers, strict=True)),
        *(f"(supports {instrument} {mode})" for instrument, own in supports.items() for mode in own),
        *(f"(calibration_target {instrument} {rng.choice(directions)})" for instrument in supports),
        *(f"(pointing {satellite} {rng.choice(directions)})" for satellite in satellites),
        *(f"(power_avail {satellite})" for satellite in satellites),
    ]
    images = rng.sample([f"(have_image {direction} {mode})" for direction in directions for mode in modes], n_images)
    poses = [f"(pointing {satellite} {rng.choice(directions)})" for satellite in satellites if rng.random() < 0.3]
    objects = {"satellite": satellites, "instrument": list(supports), "mode": modes, "direction": directions}
    return write_problem(name, "satellite", objects, init, images + poses, rng)


def _draw_supports(modes: list[str], n_satellites: int, rng: random.Random) -> dict[str, list[str]]:
    """Instrument to its modes: at least one instrument for every mode and satellite, at least one mode for each."""
    instruments = rng.sample(POOLS["instrument"], rng.randint(n_satellites, len(POOLS["instrument"]) - 1))
    supports = {instrument: [rng.choice(modes)] for instrument in instruments}
    for mode in modes:
        own = supports[rng.choice(instruments)]
        if mode not in own:
            own.append(mode)
    return supports
