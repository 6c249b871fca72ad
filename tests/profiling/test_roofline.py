"""Seconds worked out by hand."""

import pytest

from jaxppo.profiling import roofline, targets
from jaxppo.profiling.counts import Count

H100 = targets.find("gpu-h100x8")
TWO_HOSTS = targets.find("gpu:h100:2x8")


def count(flops, moved, **sent):
    return Count(flops, moved, {(kind.replace("_", "-"), axes): size for kind, (axes, size) in sent.items()})


def test_what_takes_longest_binds_and_between_hosts_it_takes_longer():
    line = roofline.estimate(count(989.5e12, 3352e9 / 2), H100, {"data": 8}, "bfloat16")
    assert line == (pytest.approx(1.0), pytest.approx(0.5), 0.0) and line.binds == "compute"
    assert roofline.estimate(count(0, 1), H100, {"data": 8}, "bfloat16").binds == "memory"
    assert roofline.estimate(count(67e12, 0), H100, {"data": 8}, "float32").compute_s == pytest.approx(1.0)
    sizes = {"data": 2, "fsdp": 8}
    inside = count(0, 0, all_gather=(("fsdp",), 450e9))
    between = count(0, 0, all_gather=(("data",), 50e9))
    assert roofline.estimate(inside, TWO_HOSTS, sizes, "bfloat16").network_s == pytest.approx(7 / 8)
    assert roofline.estimate(between, TWO_HOSTS, sizes, "bfloat16").network_s == pytest.approx(1 / 2)


@pytest.mark.parametrize(("kind", "share"), [("all_reduce", 14 / 8), ("all_gather", 7 / 8)])
def test_collectives_are_rings(kind, share):
    line = roofline.estimate(count(0, 0, **{kind: (("data",), 450e9)}), H100, {"data": 8}, "bfloat16")
    assert line.network_s == pytest.approx(share) and line.binds == "network"
