"""What travels, read from programs compiled for four CPU devices, and from lines as other compilers write them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from jaxppo.parallel.devices import DataParallel
from jaxppo.profiling import collectives

SIZES = {"data": 2, "fsdp": 2, "tensor": 1}
ARRAY = 4 * 64 * 64


def sent(program, trips=1):
    parallel = DataParallel("fsdp", jax.devices(), "data=2,fsdp=2")
    mapped = jax.shard_map(
        program, mesh=parallel.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    text = jax.jit(mapped).lower(jnp.ones((64, 64))).compile().as_text()
    return collectives.sent(text, dict(parallel.mesh.shape), trips)


def test_kinds_axes_and_bytes_of_programs_with_loops_multiplied_out():
    def program(x):
        gathered = jax.lax.all_gather(x, "fsdp", tiled=True)
        scattered = jax.lax.psum_scatter(jnp.sin(x), "data", tiled=True)
        return jnp.sum(gathered) + jnp.sum(scattered) + jax.lax.psum(jnp.cos(x), ("data", "fsdp"))

    found = sent(program)
    assert found["all-gather", ("fsdp",)] == 2 * ARRAY
    assert found["all-reduce", ("data", "fsdp")] == ARRAY
    # XLA's CPU compiler may write a scatter as a sum.
    assert found.get(("reduce-scatter", ("data",)), found.get(("all-reduce", ("data",)))) == ARRAY
    body = lambda x: jax.lax.psum(jnp.sin(x), "data")  # noqa: E731
    assert sent(lambda x: jax.lax.scan(lambda c, _: (body(c), None), x, None, length=7)[0]) == {
        ("all-reduce", ("data",)): 7 * ARRAY
    }
    until = lambda x: jax.lax.while_loop(lambda c: jnp.max(c) > 0, body, x)  # noqa: E731
    assert sent(until, trips=5) == {("all-reduce", ("data",)): 5 * ARRAY}


TEXT = """HloModule program

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %sum = {collective}
}

%condition (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(6)
  ROOT %less = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %loop = (s32[], f32[8]) while(%start), condition=%condition, body=%body
}
"""


@pytest.mark.parametrize(
    ("collective", "kind", "axes", "size"),
    [
        ("f32[8]{0} all-reduce(%x), replica_groups={{0,2},{1,3}}, to_apply=%add", "all-reduce", ("data",), 32),
        ("(f32[8]{0}, bf16[8]{0}) all-reduce(%x, %y), replica_groups=[1,4]<=[4]", "all-reduce", ("data", "fsdp"), 48),
        ("(f32[8], f32[16]) all-gather-start(%x), replica_groups={{0,1},{2,3}}", "all-gather", ("fsdp",), 64),
        ("f32[4]{0} reduce-scatter(%x), replica_groups=[2,2]<=[2,2]T(1,0)", "reduce-scatter", ("data",), 32),
        ("((f32[8]), f32[4]) reduce-scatter-start(%x), replica_groups={{0,1},{2,3}}", "reduce-scatter", ("fsdp",), 32),
        ("f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,0}}", "collective-permute", ("fsdp",), 32),
    ],
)
def test_lines_of_compilers(collective, kind, axes, size):
    assert collectives.sent(TEXT.replace("{collective}", collective), SIZES, 99) == {(kind, axes): 6 * size}


def test_groups_of_one_send_nothing_and_a_chain_of_a_tpu_counts_once():
    line = "f32[8]{0} all-reduce(%x), replica_groups=[4,1]<=[4]"
    assert collectives.sent(TEXT.replace("{collective}", line), SIZES, 1) == {}
    line = (
        'f32[16]{0} all-gather(%x), replica_groups=[2,2]<=[4], frontend_attributes={chain_id="0"}, '
        'metadata={op_name="jit(f)/all_gather"}'
    )
    text = TEXT.replace("{collective}", f"{line}\n  %again = {line}")
    assert collectives.sent(text, SIZES, 1) == {("all-gather", ("fsdp",)): 6 * 64}
