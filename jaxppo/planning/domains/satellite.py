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
    # Counts grow with the number of images, as far as the pools have names.
    satellites = rng.sample(POOLS["satellite"], draw_count(range(1, 4), 1 + n_images // 3, rng))
    modes = rng.sample(POOLS["mode"], draw_count(range(1, 6), 1 + n_images // 2, rng))
    # More directions than images, so that there are
    # enough different images with a single mode, too.
    directions = rng.sample(
        POOLS["direction"], draw_count(range(n_images + 1, 17), n_images + 3, rng)
    )
    instrument_modes = _draw_modes(modes, len(satellites), rng)
    # Every satellite carries an instrument; the remaining ones are anywhere.
    carriers = [*satellites, *rng.choices(satellites, k=len(instrument_modes) - len(satellites))]
    boards = zip(instrument_modes, carriers, strict=True)
    init = [f"(on_board {instrument} {carrier})" for instrument, carrier in boards]
    for instrument, supported in instrument_modes.items():
        init += [f"(supports {instrument} {mode})" for mode in supported]
    init += [
        f"(calibration_target {instrument} {rng.choice(directions)})"
        for instrument in instrument_modes
    ]
    init += [f"(pointing {satellite} {rng.choice(directions)})" for satellite in satellites]
    init += [f"(power_avail {satellite})" for satellite in satellites]
    images = []
    for direction in directions:
        images += [f"(have_image {direction} {mode})" for mode in modes]
    # Nothing has been taken at the start, so every goal takes steps.
    goal = rng.sample(images, n_images)
    goal += [
        f"(pointing {satellite} {rng.choice(directions)})"
        for satellite in satellites
        if rng.random() < 0.3
    ]
    objects = {
        "satellite": satellites,
        "instrument": list(instrument_modes),
        "mode": modes,
        "direction": directions,
    }
    return write_problem(name, "satellite", objects, init, goal, rng)


def _draw_modes(modes: list[str], n_satellites: int, rng: random.Random) -> dict[str, list[str]]:
    """Draw instruments with their modes: at least one for every satellite and for every mode."""
    instruments = rng.sample(
        POOLS["instrument"], rng.randint(n_satellites, len(POOLS["instrument"]) - 1)
    )
    instrument_modes = {instrument: [rng.choice(modes)] for instrument in instruments}
    # Every mode is given to an instrument once more, so that none is left without an instrument.
    for mode in modes:
        supported = instrument_modes[rng.choice(instruments)]
        if mode not in supported:
            supported.append(mode)
    return instrument_modes


SATELLITE = PlanningDomain(
    name="satellite",
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
