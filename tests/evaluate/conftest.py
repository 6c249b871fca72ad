"""Programs that decoders of equal settings share."""

from collections.abc import Iterator

import jax
import pytest

from jaxppo import models
from jaxppo.evaluate import grounded_decoding
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl import rollout
from tests.evaluate.small_models import MODEL

DECODING = (rollout.generate, grounded_decoding._begin, grounded_decoding._next)


@pytest.fixture(scope="session")
def params():
    return jax.device_get(models.init_params(MODEL, jax.random.key(1)))


@pytest.fixture(scope="module", autouse=True)
def _one_program_for_equal_settings() -> Iterator[None]:
    """Hand out the program that was mapped before, where everything that goes into it is equal.

    Each decoder maps programs of its own, and compiling those would be most of what these tests take.
    """
    programs = {}
    map_over_devices = DataParallel.map

    def shared_map(parallel, program, row_axes, out_axes, donate=()):
        if getattr(program, "func", None) not in DECODING:
            return map_over_devices(parallel, program, row_axes, out_axes, donate)
        settings = tuple(sorted(program.keywords.items()))
        key = (program.func, settings, parallel.mode, parallel.mesh, tuple(row_axes), out_axes, donate)
        if key not in programs:
            programs[key] = map_over_devices(parallel, program, row_axes, out_axes, donate)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataParallel, "map", shared_map)
        yield
