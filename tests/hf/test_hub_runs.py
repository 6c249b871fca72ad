"""Runs that end with a push to a hub of the test's own: every command that trains, and what a failed push leaves."""

import json

import pytest

from jaxppo import reward_model, self_train, sft, train
from jaxppo.config import ExportConfig, RewardModelConfig, SelfTrainConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError
from jaxppo.export import export
from tests.hub_server import TOKEN
from tests.one_layer import ONE_LAYER
from tests.test_self_train import FLAGS as ROUNDS

SIZES = ["--preset", "tiny", "--sizes", "test=4:4", "test_longer=5:4", "--response_length", "16"]
COMMANDS = {
    "train": (
        TrainConfig,
        train.train,
        [*SIZES, "--total_episodes", "32", "--sft_model_path", ONE_LAYER, "--use_peft", "--lora_r", "4"],
    ),
    "sft": (SFTConfig, sft.sft, ["--preset", "tiny", "--model_path", ONE_LAYER, "--total_episodes", "64"]),
    "self_train": (SelfTrainConfig, self_train.self_train, ROUNDS),
    "reward_model": (
        RewardModelConfig,
        reward_model.train_reward_model,
        ["--total_episodes", "8", "--batch_size", "8", "--model_path", ONE_LAYER],
    ),
}


def preferences(folder):
    folder.mkdir(exist_ok=True)
    rows = [{"prompt": "clear a", "chosen": "clear b", "rejected": "on a b"}] * 8
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ["--dataset", str(folder)]


def run(command, folder, *flags):
    config, carry_out, settings = COMMANDS[command]
    more = preferences(folder.with_name("pairs")) if command == "reward_model" else []
    return carry_out(parse_cli(config, command, [*settings, *more, "--output_dir", str(folder), *flags]))


@pytest.mark.full
def test_a_run_is_pushed_when_it_is_finished_and_pushed_again_by_export_alone(hub, tmp_path, capsys):
    flags = ["--push_to_hub", "--hub_model_id", "me/mine", "--hub_private"]
    folder = run("train", tmp_path / "run", *flags)
    assert f"{hub.url}/me/mine" in capsys.readouterr().out
    repo = hub.repos["models/me/mine"]
    places = {"", "value", "adapters/policy", "adapters/value"}
    assert {name.rpartition("/")[0] for name in repo.files} == places
    assert all(repo.files[path.name] == path.read_bytes() for path in (folder / "policy").iterdir())
    assert "type: validity" in repo.files["README.md"].decode()
    secret = TOKEN.encode()
    assert not any(secret in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert "me/mine" not in (folder / "config.yaml").read_text().partition("\n")[2]
    files, asked = dict(repo.files), len(hub.asked)
    run("train", folder, *flags, "--resume")
    assert len(hub.asked) == asked  # finished: nothing to resume, nothing to push
    hub.repos.clear()
    export(parse_cli(ExportConfig, "export", ["--run_dir", str(folder), *flags]))
    assert hub.repos["models/me/mine"].files == files


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_could_not_be_pushed_does_not_begin(command, hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match=r"^push_to_hub: "):
        run(command, tmp_path / "run", "--push_to_hub")
    assert not (tmp_path / "run").exists()
