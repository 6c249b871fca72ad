import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxppo.errors import ConfigError
from jaxppo.profiling.trace import Profile, check_updates, read_trace, table_of
from jaxppo.run.console import Console


def named(pid, name, tid=None):
    kind = {"name": "process_name"} if tid is None else {"name": "thread_name", "tid": tid}
    return {"ph": "M", "pid": pid, "args": {"name": name}} | kind


def call(name, ts, dur, pid=1, tid=1, program="jit_update", **args):
    args = {"hlo_op": name, "hlo_module": program} | args if program else args
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


def found(*events):
    """Name, calls, milliseconds and share of the operations, as the table has them."""
    return [tuple(line.split()) for line in table_of({"traceEvents": list(events)}, "").splitlines()[2:]]


def test_a_table_adds_calls_up_by_program_without_frames_of_the_host_and_what_encloses_operations():
    frames = [call("train_step", 0, 9e6, program=None), {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "name": "x"}]
    ops = [call("dot.1", 0, 3000), call("dot.1", 5000, 1000, tid=2), call("dot.1", 9000, 1000, program="jit_generate")]
    assert found(*ops, *frames) == [
        ("jit_update/dot.1", "2", "4.0", "80.0%"),
        ("jit_generate/dot.1", "1", "1.0", "20.0%"),
    ]
    body = [call("dot", 1000 + 3000 * i, 2000) for i in range(3)]
    assert found(call("while", 0, 10000), *body, call("add", 10000, 2000), call("mark", 12000, 0)) == [
        ("jit_update/dot", "3", "6.0", "75.0%"),
        ("jit_update/add", "1", "2.0", "25.0%"),
        ("jit_update/mark", "1", "0.0", "0.0%"),
    ]


def test_where_a_device_has_a_line_of_operations_nothing_else_counts_and_tables_show_ten():
    host = [named(1, "/host:CPU"), call("launch", 0, 9)]
    gpu = [named(2, "/device:GPU:0"), named(2, "Stream #13(Compute)", 7), call("gemm", 0, 2000, pid=2, tid=7)]
    assert found(*host, *gpu) == [("jit_update/gemm", "1", "2.0", "100.0%")]
    tpu = [named(3, "/device:TPU:0"), named(3, "XLA Modules", 1), named(3, "XLA Ops", 2)]
    tpu += [call("jit_update(123)", 0, 5000, pid=3, tid=1), call("fusion.1", 0, 3000, pid=3, tid=2, program=None)]
    tpu += [call("fusion.2", 3000, 1000, pid=3, tid=2)]
    assert found(*host, *tpu) == [("fusion.1", "1", "3.0", "75.0%"), ("jit_update/fusion.2", "1", "1.0", "25.0%")]
    events = [call(f"op{i}\x1b[31m", 20000 * i, 1000 * (i + 1)) for i in range(12)]
    lines = table_of({"traceEvents": events}, "update 3").splitlines()
    assert "12" in lines[0] and "update 3" in lines[0]
    assert lines[1].split() == ["operation", "calls", "total", "ms", "share"]
    assert [line.split() for line in lines[2:]] == [
        [f"jit_update/op{i}\\x1b[31m", "1", f"{i + 1:.1f}", f"{(i + 1) / 78:.1%}"] for i in range(11, 1, -1)
    ]
    assert len(table_of({"traceEvents": []}, "update 3").splitlines()) == 2


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


def test_profile_writes_a_trace_of_the_updates_after_the_first_two_and_a_table(tmp_path, capsys):
    product(np.ones((64, 64), np.float32))
    run(Profile(0, 0, 2, tmp_path, Console()), 0, 2)
    assert list(tmp_path.iterdir()) == []  # without updates nothing is written
    run(Profile(3, 10, 20, tmp_path, Console()), 10, 20)
    path = tmp_path / "profile" / "perfetto_trace.json.gz"
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    assert trace["traceEvents"] and "metadata" not in trace  # which Perfetto does not open
    assert read_trace(path) == trace
    table = (tmp_path / "profile" / "top_ops.txt").read_text()
    title, _, first, *_ = table.splitlines()
    assert "updates 13 to 15" in title
    name, calls, ms, _ = first.split()
    assert name.startswith("jit_product/") and calls == "3" and float(ms) >= 0
    out = capsys.readouterr().out
    assert table in out and str(path) in out.replace("\n", "")


def test_a_run_that_breaks_off_ends_its_trace(tmp_path):
    for _ in range(2):  # a trace that still went on would be in the way of the next one
        with pytest.raises(ZeroDivisionError), Profile(2, 0, 9, tmp_path, Console()) as profile:
            profile.begin(2)
            raise ZeroDivisionError
