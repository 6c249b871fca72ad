"""Where a configuration comes from: what goes over what, and one line for every kind of bad input."""

import json
import os
import re
import shutil

import pytest

from jaxppo.config import EvaluateConfig, ReportConfig, RewardModelConfig, RLConfig, SFTConfig, TrainConfig, sources
from jaxppo.config.old_settings import OLD_SETTINGS
from jaxppo.config.paths import cache_dir
from jaxppo.config.sources import (
    flag_names,
    flatten,
    parse_cli,
    parse_flags,
    preset_values,
    read_yaml,
    replace,
    write_yaml,
)
from jaxppo.errors import ConfigError
from jaxppo.planning.datasets.config import InspectConfig

COMMANDS = {"train": TrainConfig, "sft": SFTConfig, "evaluate": EvaluateConfig}


def parse(*args, command="train"):
    return parse_cli(COMMANDS[command], command, list(args))


def yaml_file(folder, text):
    path = folder / "given.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def error_line(*args):
    """The message of the ConfigError that these arguments raise, checked to be one line."""
    with pytest.raises(ConfigError) as caught:
        parse(*args)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_parse_cli_lays_preset_over_defaults_yaml_over_preset_and_flags_over_all(tmp_path):
    tiny = preset_values("train", "tiny")
    assert (tiny["num_ppo_epochs"], tiny["num_mini_batches"], tiny["batch_size"]) == (2, 2, 16)
    given = yaml_file(tmp_path, "num_ppo_epochs: 3\nbatch_size: 32\n")
    parsed = parse("--batch_size=8", "--preset", "tiny", f"--config={given}", "--lam", "0.5")
    assert parsed.rl.cliprange == TrainConfig().rl.cliprange == 0.2  # in none of them
    assert parsed.rl.num_mini_batches == 2  # preset over default 1
    assert parsed.rl.num_ppo_epochs == 3  # file over preset
    assert parsed.batch_size == 8  # flag over file, wherever it stands
    assert parsed.rl.lam == 0.5
    assert parsed.run.preset == "tiny"


def test_the_preset_is_that_of_the_command_line_of_the_file_or_the_default(tmp_path):
    assert flatten(parse()) == flatten(replace(TrainConfig(), **preset_values("train", "default")))
    assert parse("--config", yaml_file(tmp_path, "seed: 7")).total_episodes == TrainConfig().total_episodes
    path = yaml_file(tmp_path, "preset: tiny\nkl_coef: 0.125\n")
    expected = replace(TrainConfig(), **preset_values("train", "tiny") | {"kl_coef": 0.125})
    assert flatten(parse("--config", path)) | {"config": None} == flatten(expected)
    assert parse("--config", path, "--preset", "paper-qwen2-7b").rl.algorithm == "rloo"


def test_epochs_that_are_said_last_win_over_episodes_said_before(tmp_path):
    given = yaml_file(tmp_path, "num_train_epochs: 2\n")
    config = parse("--preset", "tiny", "--config", given)
    assert (config.num_train_epochs, config.total_episodes) == (2.0, None)
    assert parse("--config", given, "--total_episodes", "7").total_episodes == 7
    both = yaml_file(tmp_path, "num_train_epochs: 2\ntotal_episodes: 9\n")
    assert parse("--config", both).total_episodes == 9
    assert parse("--config", both, "--num_train_epochs", "1").total_episodes is None
    assert preset_values("train", "default")["total_episodes"] == 15360


def test_parse_cli_with_resume_takes_the_configuration_of_that_run_but_for_secrets(tmp_path):
    url, resume = "http://user:secret@host/", ("--output_dir", str(tmp_path), "--resume", "--save_steps", "3")
    settings = preset_values("train", "tiny") | {"reward_funcs": ("plan", url)}
    config = replace(TrainConfig(), **settings)
    write_yaml(config, tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match=r"^reward_funcs: .*--reward_funcs"):
        parse(*resume)
    resumed = parse(*resume, "--reward_funcs", "plan", url)
    assert (resumed.batch_size, resumed.reward) == (16, config.reward)
    assert (resumed.run.resume, resumed.loop.save_steps) == (True, 3)


def test_a_file_that_names_a_reward_server_by_settings_of_its_own_is_read(tmp_path):
    old = "reward_funcs: [plan, server]\nreward_server_url: http://host:1/\nreward_server_columns: true\n"
    config = parse("--config", yaml_file(tmp_path, old))
    assert config.reward.reward_funcs == ("plan", "http://host:1/")
    assert parse("--config", yaml_file(tmp_path, "reward_server_url: null\n")).reward.reward_funcs == ("plan",)
    with pytest.raises(ConfigError, match=r"reward_server_url.*--reward_funcs"):
        parse("--reward_server_url", "http://host:1/")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--no_such_flag", "1"], ["--no_such_flag"]),
        (["--no_such_flag", "1", "--kl_coef", "2", "--sede", "3"], ["--no_such_flag", "; --sede", "'--seed'"]),
        (["--kl_coeff", "1"], ["--kl_coeff", "--kl_coef"]),
        (["--batch_size", "12.5"], ["--batch_size", "int", "12.5"]),
        (["--reward_clip_range", "1"], ["--reward_clip_range", "1"]),
        (["--preset", "huge"], ["preset", "default", "tiny", "'huge'"]),
        (["--config", "/no/such.yaml"], ["config", "/no/such.yaml"]),
        (["--resume"], ["resume", "--output_dir"]),
        (["a\nb"], [r"'a\nb'", "no flag"]),
        (["--eval_splits", "test", "---seed", "5"], ["---seed", "'--seed'"]),
        (["-seed", "5"], ["-seed", "'--seed'"]),
        (["--eval_splits", "--"], ["--: "]),
        (["--seed\n", "5"], [r"'--seed\n'"]),
    ],
)
def test_parse_cli_names_a_bad_flag_in_one_line(args, named):
    message = error_line(*args)
    assert [part for part in named if part not in message] == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("no_such_key: 1", ["no_such_key"]),
        ("no_such_key: 1\nsede: 2\nhidden_size: 30", ["no_such_key", "; sede: ", "'seed'", "; hidden_size: "]),
        ("", ["given.yaml", "flag: value", "got none"]),
        ("# a comment\n---\n", ["given.yaml", "flag: value", "got none"]),
        ("kl_coef: much", ["kl_coef", "a number", "'much'"]),
        ("dataset:", ["dataset", "text", "None"]),
        ("batch_size: true", ["batch_size", "an integer", "True"]),
        ("whiten_rewards: 5", ["whiten_rewards", "True or False", "5"]),
        ("parallel: threads", ["parallel", "shard_map, pmap", "'threads'"]),
        ("reward_clip_range: [-1, 0, 1]", ["reward_clip_range", "[-1, 0, 1]"]),
        ("1: 2", ["given.yaml", "1"]),
        ('"a\\nb": 2', [r"'a\nb'"]),
        ("config: other.yaml", ["given.yaml", "'config'"]),
        ("preset: [tiny, data/huge]", ["preset", "planning-multi", "'huge'"]),
        ("preset: [[tiny]]", ["preset", "default, ", "['tiny']"]),
        ("per_device_train_batch_size: 4", ["per_device_train_batch_size", "'batch_size'"]),
        ("model_name_or_path: x", ["model_name_or_path", "'sft_model_path'"]),
        ("lora_dropout: 0.05", ["lora_dropout", "no setting"]),
        ("beta: 0.1\nkl_coef: 0.2", ["beta", "kl_coef"]),
        ("on_error: off", ["on_error", "stop, skip or a number", "'off'"]),
        ("- seed", ["given.yaml", "list"]),
        ("seed: [1", ["given.yaml"]),
        ("seed: 1\nkl_coef: 0.1\nseed: 2", ["given.yaml", "seed", "lines 1, 3"]),
    ],
)
def test_parse_cli_names_a_bad_yaml_key_in_one_line(tmp_path, text, named):
    message = error_line("--config", yaml_file(tmp_path, text))
    assert [part for part in named if part not in message] == []


def test_parse_cli_reads_yaml_values_in_the_types_of_their_fields(tmp_path):
    text = "learning_rate: 1e-4\nmax_grad_norm:\nwhiten_rewards: yes\neval_splits: [dev, test_longer]\n"
    text += "reward_timeout_s: 5\nreward_clip_range: [-1, 1]\nsft_model_path: 4:16\ndata_seed: 0x10\n"
    parsed = parse("--config", yaml_file(tmp_path, text))
    assert parsed.optimizer.learning_rate == 1e-4  # PyYAML reads 1e-4 as text
    assert parsed.optimizer.max_grad_norm is None
    assert parsed.rl.whiten_rewards is True
    assert parsed.data.eval_splits == ("dev", "test_longer")
    assert (parsed.reward.reward_timeout_s, type(parsed.reward.reward_timeout_s)) == (5.0, float)
    assert parsed.rl.reward_clip_range == (-1.0, 1.0)
    assert {type(end) for end in parsed.rl.reward_clip_range} == {float}
    assert parsed.sft_model_path == "4:16"  # and not a number of base 60
    assert parsed.data.data_seed == 16
    # A word for yes or no is what the setting says.
    text = "dataset: off\neval_splits: [on, x, no]\nwhiten_rewards: on\n"
    text += "use_peft: off\nuse_chat_template: yes\nchat_template_kwargs: {enable_thinking: off}\n"
    parsed = parse("--config", yaml_file(tmp_path, text))
    assert (parsed.data.dataset, parsed.data.eval_splits) == ("off", ("on", "x", "no"))
    assert (parsed.rl.whiten_rewards, parsed.peft.use_peft, parsed.data.use_chat_template) == (True, False, True)
    assert parsed.data.chat_template_kwargs == {"enable_thinking": False}


def test_names_of_trl_for_the_same_setting_are_flags_and_yaml_keys(tmp_path):
    parsed = parse("--config", yaml_file(tmp_path, "beta: 0.1\nmax_completion_length: 7\nsplits: [dev]"))
    assert (parsed.rl.kl_coef, parsed.sampling.response_length, parsed.data.eval_splits) == (0.1, 7, ("dev",))
    for name in ("max_completion_length", "max-completion-length"):
        assert parse(f"--{name}", "9").sampling.response_length == 9
    with pytest.raises(ConfigError, match=r"^kl_coef: .*--beta and --kl_coef"):
        parse("--beta", "0.1", "--kl_coef=0.2")
    flags = "--algorithm grpo --beta 0.3 --epsilon 0.1 --epsilon_high 0.28 --num_iterations 2"
    rl = parse(*flags.split()).rl
    assert (rl.kl_coef, rl.cliprange, rl.cliprange_high, rl.num_ppo_epochs, rl.group_size) == (0.3, 0.1, 0.28, 2, 8)
    assert (rl.mean_of_losses, rl.ratio_level, rl.scale_rewards) == ("dapo", "token", "group")
    assert RLConfig(loss_type="dr_grpo", delta=3.0).mean_of_losses == "dr_grpo"  # of PPO, too


def test_the_home_folder_stands_for_a_tilde_in_flags_and_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAXPPO_CACHE", "~/cache")
    yaml_file(tmp_path, "dataset: ~/data\nsft_model_path: ~/models/x~/y\nvalue_model_path: null\n")
    parsed = parse("--config=~/given.yaml", "--output_dir", "~/run", "--reward_model_path=~other/rm")
    assert (parsed.data.dataset, parsed.run.output_dir) == (f"{tmp_path}/data", f"{tmp_path}/run")
    assert (parsed.sft_model_path, parsed.reward.reward_model_path) == (f"{tmp_path}/models/x~/y", "~other/rm")
    evaluated = parse("--model", "~/a", "b", "~/c", command="evaluate")
    assert evaluated.model == (f"{tmp_path}/a", "b", f"{tmp_path}/c")
    assert cache_dir() == tmp_path / "cache"
    for environment, expected in (("/some/where", "/some/where"), ("", "jaxppo")):  # or the user's
        monkeypatch.setenv("JAXPPO_CACHE", environment)
        assert str(cache_dir()).endswith(expected)


def test_switches_may_be_given_a_value():
    assert parse("--preset", "tiny", "--use-peft=true", "--seed", "3").peft.use_peft
    for args in (["--use_peft", "False"], ["--use_peft", "--use_peft=False"], ["--no_use_peft"]):
        assert parse("--preset", "tiny", *args, "--seed", "3").peft.use_peft is False


@pytest.mark.parametrize("value", ["True", "False"])
def test_a_switch_turned_off_takes_no_value(value):
    """`--no_use_peft=True` turned it on."""
    for args in ([f"--no_use_peft={value}"], ["--no_use_peft", value]):
        assert error_line("--preset", "tiny", *args).startswith("--use_peft: expected True or False")


def test_words_after_two_hyphens_are_no_flags():
    assert parse_flags(ReportConfig, "report", ["--", "-run", "--other"]).runs == ("-run", "--other")


def test_read_yaml_names_a_file_that_is_no_text(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.yaml").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(ConfigError, match=path.name):
            read_yaml(path)


CHANGES = {
    "train": "--preset tiny --seed 7 --learning_rate 1e-5 --value_model_path some:folder --whiten_rewards"
    " --eval_steps 3 --eval_splits test_longer dev --max_grad_norm None --lam 0.1 --reward_clip_range -1 0.1"
    " --save_steps 0.1 --stop_token 0 --min_p 0.1 --kl_estimator full --kl_target 6",
    "sft": "--seed 7 --learning_rate 0.30000000000000004 --data_seed 3 --model_path 7 --adam_beta2 0.9",
    "evaluate": "--seed 7 --model null --eval_validator builtin --sizes train=3:1",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_write_yaml_is_read_back_by_config_as_the_same_configuration(tmp_path, command):
    path = tmp_path / "config.yaml"
    made = parse(*CHANGES[command].split(), "--output_dir", "1e5", command=command)
    write_yaml(made, path)
    back = parse("--config", str(path), command=command)
    # Where a run writes and where its values came from is not part of what it computes.
    forget = {"preset": None, "config": None, "output_dir": None}
    assert made.run.output_dir == "1e5" and back.run.output_dir is None
    assert flatten(back) | forget == flatten(made) | forget


def test_write_yaml_keeps_a_command_of_several_lines_in_a_comment_at_the_top_and_leaves_secrets_out(tmp_path):
    plain, path, config = tmp_path / "plain.yaml", tmp_path / "config.yaml", parse("--kl_coef", "0.5")
    write_yaml(config, plain)
    for end in ("\n", "\x85", "\r\n", "\u2028", "\x1e"):
        write_yaml(config, path, command=f"x 'a{end}kl_coef: 7.5' \x00\x1b\ud800")
        first, second, rest = path.read_text(encoding="utf-8").split("\n", 2)
        assert (first, second) == ("# command: x 'a", r"# kl_coef: 7.5' \x00\x1b\ud800")
        assert rest == plain.read_text(encoding="utf-8")
    assert parse("--config", str(path)).rl == config.rl
    secret = "hf_" + "a1" * 17
    config = parse("--dataset", f"https://user:{secret}@host/x", "--eval_splits", "test_longer", secret)
    write_yaml(config, path, command=f"x --dataset https://user:{secret}@host/x --api_key hidden --seed 1")
    assert secret not in path.read_text(encoding="utf-8")
    assert "--api_key <redacted> --seed 1\n" in path.read_text(encoding="utf-8")
    saved = read_yaml(path)
    assert saved["dataset"] == "https://<redacted>@host/x"
    assert saved["eval_splits"] == ["test_longer", "<redacted>"]
    assert saved["stop_token"] == "eos" and saved["seed"] == 42


@pytest.mark.parametrize(
    ("flags", "file"),
    [
        (["--dataset", "data/mine"], "data/mine/train.jsonl"),
        (["--sft_model_path", "models/mine"], "models/mine/config.json"),
        (["--reward_funcs", "plan", "mine:reward"], "mine.py"),
        (["--reward_funcs", "rewards.mine:reward"], "rewards/mine.py"),
        (["--use_peft", "--lora_path", "adapter"], "adapter/adapter_config.json"),
    ],
)
def test_a_run_that_is_resumed_elsewhere_goes_on_where_its_files_are(tmp_path, monkeypatch, capsys, flags, file):
    start, elsewhere = tmp_path / "start", tmp_path / "elsewhere"
    (start / file).parent.mkdir(parents=True)
    (start / file).touch()
    (elsewhere / "moved").mkdir(parents=True)
    (start / "train").mkdir()  # no file of a run, though a split has this name
    made = parse(*flags, "--train_split", "train")
    saved = elsewhere / "moved" / "config.yaml"
    write_yaml(made, saved, "train", start)
    monkeypatch.chdir(elsewhere)
    back = parse("--resume", "--output_dir", "moved")
    assert (os.getcwd(), back.run.output_dir) == (str(start), str(elsewhere / "moved"))
    # No setting has another value, so that nothing counts as changed, and no card shows the folder.
    call = {"resume": False, "output_dir": None, "config": None}
    assert flatten(back) | call == flatten(made) | call
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(start) in said and flags[-1] in said
    # What is here is taken from here: the files were moved with the run, or its file does not say where it was started.
    text = saved.read_text()
    copied = shutil.copytree(start, elsewhere / "copied")
    shutil.move(saved.parent, copied)
    monkeypatch.chdir(copied)
    shutil.rmtree(copied / "train")
    assert parse("--resume", "--output_dir", "moved").run.output_dir == "moved"
    saved = copied / "moved" / "config.yaml"
    shutil.rmtree(copied / file.partition("/")[0], ignore_errors=True)
    (copied / file).unlink(missing_ok=True)
    saved.write_text(text[: text.rindex("# started in")])
    assert parse("--resume", "--output_dir", "moved").run.output_dir == "moved"
    assert capsys.readouterr().err == ""
    saved.write_text(text.replace(str(start), "/no/such/folder"))
    assert parse("--resume", "--output_dir", "moved").run.output_dir == "moved"
    assert "started in /no/such/folder" in capsys.readouterr().err
    assert os.getcwd() == str(copied)


def test_a_flag_for_what_is_given_without_one_is_told_so():
    for flag in ("--run_dir", "--runs"):
        with pytest.raises(ConfigError, match=f"^{flag}: .*; runs are given without a flag$"):
            parse_flags(ReportConfig, "report", [flag, "outputs/a"])


def test_a_preset_goes_over_those_that_it_names_the_later_over_the_earlier(tmp_path, monkeypatch):
    for name, text in {
        "train/low": "kl_coef: 0.1\nlam: 0.1\nseed: 1\n",
        "data/high": "lam: 0.2\nseed: 2\n",
        "train/own": "preset: [low, data/high]\nseed: 3\n",
    }.items():
        path = tmp_path / "presets" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sources.resources, "files", lambda _: tmp_path)
    assert preset_values("train", "own") == {"kl_coef": 0.1, "lam": 0.2, "seed": 3}
    with pytest.raises(ConfigError, match=r"^preset: .*low, own .*'high'"):
        preset_values("train", "high")


@pytest.mark.parametrize("command", COMMANDS)
def test_presets_of_every_command_are_complete_configurations(command):
    folder = sources.resources.files("jaxppo.config") / "presets" / command
    names = [entry.name.removesuffix(".yaml") for entry in folder.iterdir()]
    assert "default" in names
    for name in names:
        replace(COMMANDS[command](), **preset_values(command, name))


def help_of(command, flag, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(flag, command=command)
    assert not stop.value.code
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def test_help_all_shows_the_meanings_and_defaults_of_all_flags(capsys):
    shown = help_of("train", "--help_all", capsys)
    assert "(alias --beta)" in shown and "default: num_train_epochs" in shown
    assert "--parallel {shard_map,pmap,fsdp} (default: shard_map)" in shown
    assert [name for name in flag_names(TrainConfig) if f"--{name} " not in shown] == []
    assert "--val_timeout_s" not in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_twelve_flags_whose_examples_can_be_read(command, capsys):
    shown = help_of(command, "--help", capsys)
    examples = COMMANDS[command].FIRST
    assert len(examples) == 12
    places = [shown.index(f"e.g. {example}") for example in examples]
    assert places == sorted(places)
    for example in examples:
        if example not in ("--resume", "--pddl_dir instances", "--num_samples 8", "--use_peft"):  # with others
            parse(*example.split(), command=command)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--test_sizes", "--sizes test=4:40"),
        ("--process_id", "--distributed"),
        ("--no_pool", "docs/experiments/"),
        ("--no_bf16", "'dtype'"),
        ("--val_timeout_s", "val_timeout_s: VALUE"),
        ("--eval_top_k", "does not read"),
    ],
)
def test_a_flag_that_is_gone_says_what_to_do(flag, says):
    assert says in error_line(flag, "1")


def test_epochs_are_named_where_a_command_counts_rows_alone():
    with pytest.raises(ConfigError, match=r"^--num_train_epochs: .*'total_episodes'"):
        parse("--num_train_epochs", "2", command="sft")
    assert parse("--num_train_epochs", "2").num_train_epochs == 2


@pytest.mark.parametrize("name", ["hidden_size", "tokenizer_path", "json", "plans"])
def test_a_setting_of_other_commands_is_not_said_to_be_gone(tmp_path, name):
    for message in (error_line(f"--{name}", "7"), error_line("--config", yaml_file(tmp_path, f"{name}: 7\n"))):
        assert name in message and OLD_SETTINGS[name].advice not in message
        assert "gone" not in message and "no such setting" not in message


def test_a_setting_that_one_command_lost_says_what_to_do_there():
    with pytest.raises(ConfigError, match="gone; --model_path"):
        parse_cli(RewardModelConfig, "reward_model", ["--hidden_size", "7"])
    with pytest.raises(ConfigError, match="gone; the status of `planning inspect`"):
        parse_flags(InspectConfig, "planning inspect", ["--json", "x"])


def test_a_file_of_an_older_version_is_read_or_refused_by_name(tmp_path):
    """Values of settings that are gone are read where they change nothing, or where another setting has them now."""
    old = "test_sizes: '4:7'\ntrain_sizes: '3:2000,4:6000,5:24000'\nconnect_timeout_s: 120\nval_timeout_s: 30.0\n"
    parsed = parse("--preset", "tiny", "--config", yaml_file(tmp_path, old))
    assert (parsed.data.part("sizes", "test"), parsed.data.part("sizes", "rl")) == ("4:7", "4:24")
    # Text without brackets is one word, beside an old name and as the value of one.
    both = yaml_file(tmp_path, "test_sizes: '4:7'\nsizes: rl=4:6\nstream_sizes: blocksworld:2-5\n")
    data = parse("--preset", "tiny", "--config", both).data
    assert (data.part("sizes", "test"), data.part("sizes", "rl"), data.part("sizes", "blocksworld")) == (
        "4:7",
        "4:6",
        "2-5",
    )
    assert error_line("--config", yaml_file(tmp_path, "connect_timeout_s: 9")).startswith("connect_timeout_s: ")


def test_a_setting_without_a_flag_is_one_of_files_and_survives_both_ways(tmp_path):
    given = yaml_file(tmp_path, "val_timeout_s: 5\nratio_threshold: null\nlength_edges: [0, 7]\n")
    config = parse("--config", given)
    assert (config.reward.val_timeout_s, config.rl.ratio_threshold) == (5.0, None)
    assert config.evaluation.length_edges == (0, 7)
    write_yaml(config, tmp_path / "config.yaml")
    assert flatten(parse("--config", str(tmp_path / "config.yaml"))) | {"config": given} == flatten(config)
    # A command that shares the group and does not read the setting refuses it.
    with pytest.raises(ConfigError, match=r"^audit_rate: expected None with sft, which"):
        parse("--config", yaml_file(tmp_path, "audit_rate: 0.5\n"), command="sft")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("early_stopping: false\ntarget_kl: 0.5", ""),
        ("early_stopping: true\ntarget_kl: 0.5", "target_kl: 0.5"),
        ("early_stopping: true", "target_kl: 1.0"),
        ("target_kl: 0.5", "target_kl: 0.5"),
        ("use_score_scaling: true\nuse_score_norm: false", "score_scaling: scale"),
        ("use_score_scaling: true\nuse_score_norm: true", "score_scaling: norm"),
        ("use_score_scaling: false", "score_scaling: none"),
        ("input_min_text_length: 2\ninput_max_text_length: 7", "input_text_length: [2, 7]"),
        ("input_min_text_length: null\ninput_max_text_length: null", ""),
        ("filter_overlong_prompts: true\nmax_prompt_length: null", "max_prompt_length: 512"),
        ("filter_overlong_prompts: true\nmax_prompt_length: 9", "max_prompt_length: 9"),
        ("filter_overlong_prompts: false", ""),
        ("stop_token: null\nstop_token_id: 5", "stop_token: 5"),
        ("stop_token: null\nstop_token_id: null", ""),
        ("stop_token: none\nstop_token_id: null", "stop_token: none"),
        (
            "reward_funcs: [sentiment]\nsentiment_model_path: a\nreward_model_path: null\nsentiment_label: POSITIVE",
            "reward_funcs: [sentiment]\nreward_model_path: a",
        ),
        ("early_stopping: true\ntarget_kl: null", "target_kl: 1.0"),
        ("use_score_norm: false", "score_scaling: none"),
        ("preset: imdb-gpt2\nstop_token: null", "preset: imdb-gpt2\nstop_token: eos"),
        ("headline_split: test_longer", ""),
        ("headline_split: test", "eval_splits: [test_longer, test]"),
        ("eval_splits: [a, b]\nheadline_split: a", "eval_splits: [b, a]"),
        ("eval_splits: [a, b]\nheadline_split: null", "eval_splits: [a, b]"),
    ],
)
def test_settings_that_were_two_and_are_one_are_read_under_its_name(tmp_path, old, new):
    (tmp_path / "new").mkdir()
    expected = parse("--config", yaml_file(tmp_path / "new", f"{new}\nseed: 1\n"))
    given = parse("--config", yaml_file(tmp_path, f"{old}\nseed: 1\n"))
    assert flatten(given) | {"config": None} == flatten(expected) | {"config": None}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("reward_model_path: a\nsentiment_model_path: b", "sentiment_model_path"),
        ("stop_token: none\nstop_token_id: 5", "stop_token_id"),
        ("early_stopping: 'false'", "early_stopping"),
        ("use_score_norm: true", "use_score_norm"),
        ("use_score_scaling: true\nscore_scaling: none", "use_score_scaling"),
        ("headline_split: other", "headline_split"),
        ("input_min_text_length: 2", "input_min_text_length"),
        (
            "input_min_text_length: 2\ninput_max_text_length: 7\ninput_text_length: [1, 2]",
            "input_min_text_length",
        ),
    ],
)
def test_settings_that_cannot_be_one_are_refused_by_their_old_name(tmp_path, text, name):
    line = error_line("--config", yaml_file(tmp_path, text))
    assert line.startswith(f"{name}: expected ") and "\n" not in line.strip()


@pytest.mark.parametrize("sizes", ["['test=4:5']", "test=4:5"], ids=["list", "text"])
def test_a_flag_of_several_parts_changes_those_that_it_names(tmp_path, sizes):
    given = yaml_file(tmp_path, f"preset: tiny\nsizes: {sizes}\n")
    data = parse("--config", given, "--sizes", "rl=4:6", "--seed", "1", "--sizes=test_longer=5:8").data
    assert flatten(data)["sizes"] == ("train=3:2000,4:6000,5:24000", "rl=4:6", "test=4:5", "test_longer=5:8")


def test_a_mapping_is_json_on_the_command_line_and_a_mapping_in_a_file_and_survives_both_ways(tmp_path):
    mapping, path = {"date": "26 Jul 2024", "parts": [1, {"two": None}]}, tmp_path / "config.yaml"
    parsed = parse("--chat_template_kwargs", json.dumps(mapping))
    write_yaml(parsed, path)
    assert parsed.data.chat_template_kwargs == read_yaml(path)["chat_template_kwargs"] == mapping
    assert parse("--config", str(path)).data == parsed.data
    over = parse("--config", str(path), "--chat_template_kwargs={}")
    assert over.data.chat_template_kwargs == {}
    assert parse("--config", str(path), "--chat_template_kwargs", "None").data.chat_template_kwargs is None


@pytest.mark.parametrize(
    ("in_json", "in_yaml", "named"),
    [
        ("{broken", "'{broken'", "{broken"),
        ("[1]", "[1]", "[1]"),
        ('{"tokenize": true}', "{tokenize: true}", "'tokenize'"),
        ('{"a": NaN}', "{a: .nan}", "{'a': nan}"),
        (None, "{1: 2}", "{1: 2}"),
        (None, "{day: 2024-07-26}", "day"),
    ],
)
def test_a_bad_mapping_is_one_line_that_names_the_field(tmp_path, in_json, in_yaml, named):
    lines = [error_line("--config", yaml_file(tmp_path, f"chat_template_kwargs: {in_yaml}\n"))]
    if in_json is not None:
        lines.append(error_line("--chat_template_kwargs", in_json))
    for line in lines:
        assert line.startswith("chat_template_kwargs: ") and named in line
