"""Satellite: satellites turn, calibrate their instruments and take images."""

import random

from jaxppo.planning.domains.domain import Phrases, PlanningDomain
from jaxppo.planning.domains.problems import draw_count, numbered, write_problem

POOLS = {
    "satellite": numbered("satellite", 3),
    "instrument": numbered("instrument", 6),
    "mode": ("infrared", "optical", "radio", "thermal", "xray"),
    "direction": (*numbered("star", 8), *numbered("planet", 8)),
}


def draw_problem(n_images: int, rng: random.Random, name: str) -> str:
    """Write a random problem.

    Which images are wanted, where satellites point and (for some) must point in the end, which instrument is on board
    of which satellite, its modes and calibration target, all numbers, names and order vary. It is solvable: every mode
    has an instrument, which can be switched on (after switching off another one), calibrated, and turned to any
    direction; pointing goals come last.
    """
    few = n_images + 1
    satellites = rng.sample(POOLS["satellite"], draw_count(range(1, 4), 1 + n_images // 3, rng))
    modes = rng.sample(POOLS["mode"], draw_count(range(1, 6), 1 + n_images // 2, rng))
    directions = rng.sample(POOLS["direction"], draw_count(range(few, 17), few + 2, rng))
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
    """Draw the modes of instruments: one instrument or more for every mode and satellite, one mode or more for each."""
    instruments = rng.sample(POOLS["instrument"], rng.randint(n_satellites, len(POOLS["instrument"]) - 1))
    supports = {instrument: [rng.choice(modes)] for instrument in instruments}
    for mode in modes:
        own = supports[rng.choice(instruments)]
        if mode not in own:
            own.append(mode)
    return supports


SATELLITE = PlanningDomain(
    name="satellite",
    counts="images",
    sizes=range(1, 13),
    train_sizes=range(1, 9),
    larger_sizes=range(9, 13),
    pools=POOLS,
    draw=draw_problem,
    phrases=Phrases(
        about=(
            "Satellites take images with instruments. An instrument is switched on, calibrated on its target, and "
            "pointed where the image is to be taken; each satellite has power for one instrument at a time."
        ),
        kinds={
            "satellite": ("a satellite", "satellites"),
            "instrument": ("an instrument", "instruments"),
            "mode": ("a mode", "modes"),
            "direction": ("a direction", "directions"),
            "object": ("something", "anything"),
        },
        predicates={
            "on_board": "{0} is part of {1}",
            "supports": "{0} can take images in mode {1}",
            "calibration_target": "{0} is calibrated on {1}",
            "pointing": "{0} points at {1}",
            "power_avail": "{0} has power to spare",
            "power_on": "{0} is switched on",
            "calibrated": "{0} is ready",
            "have_image": "there is an image of {0} in mode {1}",
        },
        actions={
            "turn_to": "turn {0} to {1} from {2}",
            "switch_on": "switch on {0} of {1}",
            "switch_off": "switch off {0} of {1}",
            "calibrate": "let {0} calibrate {1} on {2}",
            "take_image": "let {0} take an image of {1} with {2} in mode {3}",
        },
    ),
)
