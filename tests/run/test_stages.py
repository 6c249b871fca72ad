"""Each stage is done once, whatever kills the run between."""

import json

import numpy as np
import pytest

from jaxppo.errors import DataError
from jaxppo.run.preemption import Preempted, Preemption
from jaxppo.run.stages import STAGES_FILE, Stages


def test_once_does_a_stage_once_over_all_processes(tmp_path):
    done = []
    for _ in range(3):
        stages = Stages(tmp_path / "round")
        found = [stages.once(name, lambda name=name: {"n": done.append(name) or len(done)}) for name in "ab"]
        assert found == [{"n": 1}, {"n": 2}] and "a" in stages and "c" not in stages
    assert done == ["a", "b"]
    found = stages.once("c", lambda: {"x": np.float32(0.5), "y": [np.int64(3)], "z": float("nan")})
    assert found == Stages(tmp_path / "round").once("c", dict) == stages["c"] == {"x": 0.5, "y": [3], "z": None}


def test_no_stage_is_done_that_fails_that_the_run_stops_before_or_of_a_damaged_file(tmp_path):
    def fail():
        raise KeyboardInterrupt

    stages = Stages(tmp_path)
    stages.once("a", lambda: {"n": 1})
    with pytest.raises(KeyboardInterrupt):
        stages.once("b", fail)
    assert json.loads((tmp_path / STAGES_FILE).read_text()) == {"a": {"n": 1}}
    assert Stages(tmp_path).once("b", lambda: {"n": 2}) == {"n": 2}
    with pytest.raises(Preempted), Preemption("resume") as preemption:
        preemption._signum = 15
        Stages(tmp_path).once("c", lambda: pytest.fail("it began"))
    assert "c" not in Stages(tmp_path)
    (tmp_path / STAGES_FILE).write_text("{")
    with pytest.raises(DataError, match=r"stages\.json: "):
        Stages(tmp_path)
