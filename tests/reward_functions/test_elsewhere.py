"""docs/rewards_elsewhere.md: its code is run, with TRL's trainers on the shipped model of three small layers."""

import functools
import inspect
import json
import re
import sys

import pytest

from jaxppo import hf
from jaxppo.config import DataConfig
from jaxppo.data import load_split
from jaxppo.reward_functions.plan import make_plan_reward
from tests import ROOT

PAGE = (ROOT / "docs" / "rewards_elsewhere.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r'^```python(?: title="([^"]+)")?\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
SMALLER = "max_steps=2, per_device_train_batch_size=8, num_generations=4, report_to=[], save_strategy='no'"
REPLACED = {
    '"Qwen/Qwen2.5-0.5B"': repr(str(hf.ASSETS / "blocksworld-sft")),
    "logging_steps=1": f"logging_steps=1, {SMALLER}, use_cpu=True, bf16=False, disable_tqdm=True",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with some rows of planning data, where the page finds its own."""
    (tmp_path / "plans").mkdir()
    rows = load_split(DataConfig(), "test", None)[:16]
    (tmp_path / "plans" / "rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("verl_plans", "openrlhf_plans"):
        sys.modules.pop(name, None)


def follow(folder, names, wanted):
    """Run the blocks of the page in which `wanted` occurs, and write the files."""
    for title, text in BLOCKS:
        if title:
            (folder / title).write_text(text)
        elif re.search(wanted, text):
            exec(functools.reduce(lambda text, pair: text.replace(*pair), REPLACED.items(), text), names)


def rows_of(folder):
    from datasets import Dataset

    return Dataset.from_json(str(folder / "plans" / "rl.jsonl"))


@pytest.mark.full
def test_trl_trains_two_steps_with_the_plan_reward(folder):
    names = {}
    for trainer in ("GRPO", "RLOO"):
        follow(folder, names, f"{trainer}Trainer")
        assert type(names["trainer"]).__name__ == f"{trainer}Trainer"
        logs = [log for log in names["trainer"].state.log_history if "loss" in log]
        assert [log["step"] for log in logs] == [1, 2]
        for log in logs:
            assert log["rewards/plan/mean"] == log["reward"] == log["reward/mean"]
            assert 0.0 < log["reward/plan_valid"] <= log["rewards/plan/mean"] <= 1.0
        assert max(log["grad_norm"] for log in logs) > 0.0


def test_verl_and_openrlhf_call_the_functions_of_the_page(folder):
    names = {"problems": rows_of(folder)}
    follow(folder, names, "verl_plans import|openrlhf_plans import")
    truth = names["truth"]
    assert list(inspect.signature(names["compute_score"]).parameters)[:4] == [
        *("data_source", "solution_str", "ground_truth", "extra_info")
    ]
    score = names["compute_score"](
        data_source="jaxppo/blocksworld",
        solution_str="unstack a b",
        ground_truth=truth,
        extra_info={"split": "rl", "index": 0, "num_turns": None, "rollout_reward_scores": {}},
    )
    assert score["valid"] == 0.0 and 0.0 <= score["score"] < 1.0
    assert (folder / "plans" / "verl.parquet").exists()
    with pytest.raises(ValueError, match="begins with its prompt"):
        names["reward_func"](["other text"], ["<init>"], [names["row"]["label"]])
    # One row at a time, as its executor asks.
    one = names["reward_func"](names["queries"][:1], [names["row"]["input"]], [names["row"]["label"]])
    assert one["rewards"].shape == one["scores"].shape == (1,)
    assert one["extra_logs"]["valid"].flatten()[0].item() == 1.0


def test_every_block_of_the_page_is_run():
    runs = [text for title, text in BLOCKS if not title]
    wanted = ("GRPOTrainer", "RLOOTrainer", "verl_plans import", "openrlhf_plans import")
    assert all(sum(word in text for word in wanted) == 1 for text in runs) and len(runs) == len(wanted)


def test_plan_reward_reads_the_last_turn_of_a_chat():
    (row,) = load_split(DataConfig(), "test", None)[:1]
    columns = {name: [row[name]] * 4 for name in ("domain_pddl", "problem_pddl", "reference_plan", "prompt_style")}
    says = lambda *turns: [{"role": "assistant", "content": turn} for turn in turns]  # noqa: E731
    completions = [row["completion"], says(row["completion"]), says(row["completion"], "no plan"), says(None)]
    assert make_plan_reward()(["p"] * 4, completions, [[]] * 4, **columns) == [1.0, 1.0, 0.0, 0.0]
