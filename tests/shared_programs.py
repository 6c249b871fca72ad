"""Programs that runs of equal settings share, for tests of runs and not of what is compiled.

Of the 5 s that a small run takes in a process that has carried out one like it, tracing, lowering and loading of
programs are 4. A run that is stopped and goes on, and the one that it is compared with, differ in their folder alone.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from jaxppo import train
from jaxppo.parallel.devices import DataParallel
from jaxppo.rl.learner import PPO

_LEARNERS: dict[str, PPO] = {}
_MAPPED: dict[Any, Callable[..., Any]] = {}


@contextmanager
def shared_programs() -> Iterator[None]:
    """Let runs in this block use programs that an equal run has traced.

    Not for tests that patch what is traced, such as a loss: they would get the program of another run.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Inputs, "learner", _learner)
        patch.setattr(DataParallel, "map", _map)
        yield


_make_learner = train.Inputs.learner
_map_anew = DataParallel.map


def _learner(self: train.Inputs, parallel: DataParallel) -> PPO:
    """Return the programs of a run, or of one that differs in its folder alone."""
    run = dataclasses.replace(self.config.run, output_dir=None, resume=False, allow_changes=())
    settings = dataclasses.replace(self.config, run=run)
    models = self.models.policy, self.models.value, self.models.adapter, self.models.tokenizer.pad_token_id
    key = repr((settings, models, self.template.end_id, self.prompts.length_gaps, _devices(parallel)))
    if key not in _LEARNERS:
        _LEARNERS[key] = _make_learner(self, parallel)
    return _LEARNERS[key]


def _map(
    self: DataParallel, program: Any, row_axes: Any, out_axes: Any, donate: tuple[int, ...] = (), **options: Any
) -> Any:
    """Compile a function with fixed arguments, as samplers are, once for equal arguments."""
    if not isinstance(program, partial) or hasattr(program.func, "__self__") or options:
        return _map_anew(self, program, row_axes, out_axes, donate, **options)
    arguments = tuple(sorted(program.keywords.items()))
    key = _devices(self), program.func, program.args, arguments, tuple(row_axes), out_axes, donate
    try:
        known = key in _MAPPED
    except TypeError:  # an argument that cannot be compared by value
        return _map_anew(self, program, row_axes, out_axes, donate)
    if not known:
        _MAPPED[key] = _map_anew(self, program, row_axes, out_axes, donate)
    return _MAPPED[key]


def _devices(parallel: DataParallel) -> tuple[Any, ...]:
    return parallel.mode, tuple(parallel.devices), tuple(parallel.sizes.items())
