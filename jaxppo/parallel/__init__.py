"""Spread one program over devices and processes: meshes, shards, and processes that agree or end together.

In: per-device programs and pytrees. Out: compiled programs for all devices. The only room that names a mesh.
"""

__all__ = ["devices", "partition", "platform", "processes", "stacks"]
