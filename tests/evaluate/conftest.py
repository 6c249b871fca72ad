"""Programs that decoders of equal settings share."""

from collections.abc import Iterator

import jax
import pytest

from jaxppo import models
from tests.evaluate.small_models import MODEL
from tests.shared_programs import shared_programs


@pytest.fixture(scope="session")
def params():
    return jax.device_get(models.init_params(MODEL, jax.random.key(1)))


@pytest.fixture(scope="module", autouse=True)
def _one_program_for_equal_settings() -> Iterator[None]:
    """Each decoder maps programs of its own, and compiling those would be most of what these tests take."""
    with shared_programs():
        yield
