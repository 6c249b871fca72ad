import jax

from jaxppo.parallel import platform
from jaxppo.parallel.platform import Platform


def test_current_is_the_platform_of_the_devices():
    assert platform.current() == Platform(jax.default_backend(), None)


def test_current_is_the_target_within_compiling_for():
    target = Platform("tpu", 16 * 2**30)
    with platform.compiling_for(target):
        assert platform.current() == target
    assert platform.current().name == "cpu"


def test_current_takes_the_smallest_device(monkeypatch):
    class Device:
        def __init__(self, stats):
            self.memory_stats = lambda: stats

    monkeypatch.setattr(
        jax, "local_devices", lambda: [Device({"bytes_limit": 7}), Device({"bytes_limit": 5}), Device(None)]
    )
    assert platform.current().memory_bytes == 5
