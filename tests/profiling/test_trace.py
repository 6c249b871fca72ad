import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import ConfigError
from jaxppo.profiling.trace import Profile, check_updates
from jaxppo.run.console import Console


@pytest.mark.parametrize(("wanted", "left", "most"), [(3, 4, 2), (1, 2, 0), (1, 0, 0)])
def test_check_updates_wants_enough_updates_after_those_that_compile(wanted, left, most):
    with pytest.raises(ConfigError, match=rf"^profile: .* {most} .*{left} updates.* {wanted}"):
        check_updates(wanted, left)
    check_updates(most, left)


@jax.jit
def product(x):
    return jnp.tanh(x @ x)


def run(profile, start, last):
    x = np.ones((64, 64), np.float32)
    with profile:
        for step in range(start, last):
            profile.begin(step)
            product(x).block_until_ready()
            profile.end(step)


def test_profile_writes_a_trace_of_the_updates_after_the_first_two(tmp_path, capsys):
    product(np.ones((64, 64), np.float32))
    run(Profile(0, 0, 2, tmp_path, Console()), 0, 2)
    assert list(tmp_path.iterdir()) == []  # without updates nothing is written
    run(Profile(3, 10, 20, tmp_path, Console()), 10, 20)
    path = tmp_path / "profile" / "perfetto_trace.json.gz"
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    assert trace["traceEvents"] and "metadata" not in trace  # which Perfetto does not open
    calls = [event for event in trace["traceEvents"] if event.get("args", {}).get("hlo_module", "") == "jit_product"]
    assert len({event["name"] for event in calls}) > 1
    out = capsys.readouterr().out.replace("\n", "")
    assert "updates 13 to 15" in out and str(path) in out


def test_a_run_that_breaks_off_ends_its_trace(tmp_path):
    for _ in range(2):  # a trace that still went on would be in the way of the next one
        with pytest.raises(ZeroDivisionError), Profile(2, 0, 9, tmp_path, Console()) as profile:
            profile.begin(2)
            raise ZeroDivisionError
