"""examples/ppo_loop.py runs, and learns from what its rewards say."""

import importlib.util

import numpy as np
import pytest

from jaxppo.planning.domains import BLOCKSWORLD
from tests import ROOT
from tests.one_layer import ONE_LAYER

PATH = ROOT / "examples" / "ppo_loop.py"
PROBLEM = """(define (problem two) (:domain blocksworld) (:objects a b)
  (:init (handempty) (ontable a) (ontable b) (clear a) (clear b)) (:goal (on a b)))"""
ROW = {
    "prompt_style": "atoms",
    "domain_pddl": BLOCKSWORLD.pddl,
    "problem_pddl": PROBLEM,
    "reference_plan": ["(pick-up a)", "(stack a b)"],
}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("ppo_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("completion", "reward", "valid"),
    [
        ("pick-up a ; stack a b", 1.0, True),
        ("pick-up a", 0.5, False),
        ("pick-up a ; stack a b ; unstack a b", 2 / 3, False),
        ("", 0.0, False),
    ],
)
def test_the_reward_of_a_plan(example, completion, reward, valid):
    assert example.plan_reward(completion, ROW) == (pytest.approx(reward), valid)


@pytest.mark.full
def test_the_example_prints_reward_and_valid_share_of_each_update(example, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["ppo_loop.py", "--updates", "2", "--batch_size", "8", "--model", ONE_LAYER])
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["update", "1", "reward"], ["update", "2", "reward"]]
    assert all("valid" in line and "kl" in line for line in lines)
    rewards = [float(line.split()[3]) for line in lines]
    assert all(0.0 <= reward <= 1.0 for reward in rewards) and np.isfinite(rewards).all()
    assert abs(float(lines[0].split()[-1])) < 1e-3 < abs(float(lines[1].split()[-1]))  # equal models, then not
