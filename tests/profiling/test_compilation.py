"""What JAX compiles and reads back during updates, and the lines about it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxppo.profiling.compilation import Compilations


@pytest.fixture
def lines():
    """What is printed."""
    return []


@pytest.fixture
def compilations(lines):
    with Compilations(lines.append) as found:
        yield found


def compiled(name="/jax/core/compile/backend_compile_duration", seconds=1.5):
    jax.monitoring.record_event_duration_secs(name, seconds)


def read_from_cache():
    jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
    compiled(seconds=0.25)  # as JAX does


def test_counts_are_those_between_begin_and_end(compilations):
    compiled()
    compilations.begin()
    compiled()
    compiled("/jax/core/compile/jaxpr_trace_duration")
    jax.monitoring.record_event("/jax/compilation_cache/cache_misses")
    read_from_cache()
    assert compilations.end(1, 96) == {"compile/count": 1, "compile/s": 1.75, "cache/hits": 1}
    compilations.begin()
    assert compilations.end(2, 96) == {"compile/count": 0, "compile/s": 0.0, "cache/hits": 0}
    with Compilations(print) as closed:
        closed.begin()
    compiled()
    assert closed.end(1, 96)["compile/count"] == 0  # nothing outside of the block


def update(compilations, step, length, programs):
    compilations.begin()
    for _ in range(programs):
        compiled()
    compilations.end(step, length)


def test_a_new_length_is_reported_once_and_not_during_the_warm_up(compilations, lines):
    for step, length, programs in [(11, 96, 9), (12, 128, 4), (13, 96, 0), (14, 160, 4), (15, 160, 0)]:
        update(compilations, step, length, programs)
    (line,) = lines
    assert line.startswith("update 14: compiled 4 ") and "6.0 s" in line and "160 tokens" in line and "32" in line


def test_compiling_for_a_length_again_is_reported_once(compilations, lines):
    for step in range(1, 6):
        update(compilations, step, 96, programs=1)
    (line,) = lines
    assert line.startswith("update 3: compiled 1 ") and "96 tokens" in line


def test_programs_from_the_persistent_cache_are_not_reported(compilations, lines):
    for step in range(1, 5):
        compilations.begin()
        read_from_cache()
        compilations.end(step, 32 * step)
    assert lines == []


@pytest.fixture
def empty_cache(tmp_path):
    """JAX's persistent cache in an empty folder, for programs of any size."""
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("empty_cache")
def test_jax_reports_what_it_compiles_and_what_it_reads(compilations):
    program, x = jax.jit(lambda x: jnp.sin(x) @ x), np.ones((3, 3), np.float32)
    found = []
    for _ in range(3):
        compilations.begin()
        program(x)
        found.append(compilations.end(1, 96))
        if len(found) == 2:
            jax.clear_caches()  # those in memory
    assert [(record["compile/count"], record["cache/hits"]) for record in found] == [(1, 0), (0, 0), (0, 1)]
    assert found[0]["compile/s"] > 0 == found[1]["compile/s"]
