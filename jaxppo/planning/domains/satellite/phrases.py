"""Satellite in English."""

from jaxppo.planning.domains.phrases import Phrases

PHRASES = Phrases(
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
)
