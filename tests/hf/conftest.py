"""A hub for the tests of this room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hub_server


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[hub_server.Hub]:
    """A hub that this process uses."""
    with hub_server.serving() as hub, hub_server.used(hub, str(tmp_path / "home")):
        yield hub
    assert hub.unknown == []
