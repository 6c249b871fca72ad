"""Where a configuration comes from: what goes over what, and one line for every kind of bad input."""

import json
import re

import pytest

from jaxppo.config import TrainConfig, sources
from jaxppo.config.sources import flatten, plain_values, preset_values, read_yaml, replace, write_yaml
from jaxppo.errors import ConfigError
from jaxppo.run.folder import check_settings
from tests import quick_first
from tests.config.test_config import COMMANDS, error_line, parse, yaml_file


def test_parse_cli_lays_preset_over_defaults_yaml_over_preset_and_flags_over_all(tmp_path):
    tiny = preset_values("train", "tiny")
    assert (tiny["num_ppo_epochs"], tiny["num_mini_batches"], tiny["batch_size"]) == (2, 2, 16)
    given = yaml_file(tmp_path, "num_ppo_epochs: 3\nbatch_size: 32\n")
    parsed = parse("--preset", "tiny", "--config", given, "--batch_size", "8")
    assert parsed.rl.cliprange == TrainConfig().rl.cliprange == 0.2  # in none of them
    assert parsed.rl.num_mini_batches == 2  # preset over default 1
    assert parsed.rl.num_ppo_epochs == 3  # file over preset
    assert parsed.batch_size == 8  # flag over file


def test_parse_cli_does_not_care_about_the_order_of_flags(tmp_path):
    given = yaml_file(tmp_path, "kl_coef: 0.5\nlam: 0.5\n")
    before, after = parse("--kl_coef", "0.25", "--config", given), parse(f"--config={given}", "--kl_coef=0.25")
    assert before == after
    assert (after.rl.kl_coef, after.rl.lam) == (0.25, 0.5)


def test_parse_cli_without_preset_and_config_takes_the_preset_default():
    assert flatten(parse()) == flatten(replace(TrainConfig(), **preset_values("train", "default")))


def test_a_file_may_name_the_preset_that_it_lies_over_and_the_command_line_another(tmp_path):
    path = tmp_path / "given.yaml"
    path.write_text("preset: tiny\nkl_coef: 0.125\n")
    assert flatten(parse("--config", str(path))) | {"config": None} == flatten(
        replace(TrainConfig(), **preset_values("train", "tiny") | {"kl_coef": 0.125})
    )
    assert parse("--config", str(path), "--preset", "paper-qwen2-7b").rl.algorithm == "rloo"


def test_parse_cli_with_a_config_file_leaves_the_preset_default_out(tmp_path):
    assert parse("--config", yaml_file(tmp_path, "seed: 7")).total_episodes == TrainConfig().total_episodes


def test_epochs_that_are_said_last_win_over_episodes_said_before(tmp_path):
    given = yaml_file(tmp_path, "num_train_epochs: 2\n")
    for config in (parse("--num_train_epochs", "2"), parse("--preset", "tiny", "--config", given)):
        assert (config.num_train_epochs, config.total_episodes) == (2.0, None)
    assert parse("--config", given, "--total_episodes", "7").total_episodes == 7
    both = yaml_file(tmp_path, "num_train_epochs: 2\ntotal_episodes: 9\n")
    assert parse("--config", both).total_episodes == 9
    assert parse("--config", both, "--num_train_epochs", "1").total_episodes is None
    assert parse("--preset", "imdb-gpt2").total_episodes is None and parse().total_episodes == 15360


def test_a_secret_that_a_run_does_not_keep_is_given_again(tmp_path):
    url = "http://user:secret@host/"
    config = parse("--reward_funcs", "server", "--reward_server_url", url)
    write_yaml(config, tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="reward_server_url: expected no <redacted> in it"):
        parse("--config", str(tmp_path / "config.yaml"))
    again = parse("--config", str(tmp_path / "config.yaml"), "--reward_server_url", url)
    assert again.reward == config.reward


def test_parse_cli_with_resume_takes_the_configuration_of_that_run(tmp_path):
    write_yaml(parse("--preset", "tiny", "--kl_coef", "0.125"), tmp_path / "config.yaml")
    resumed = parse("--output_dir", str(tmp_path), "--resume", "--save_steps", "3")
    assert (resumed.batch_size, resumed.rl.kl_coef) == (16, 0.125)
    assert (resumed.run.resume, resumed.loop.save_steps) == (True, 3)


def test_parse_cli_leaves_no_mark_on_later_calls():
    before = parse()
    parse("--kl_coef", "0.75")
    assert parse() == before != parse("--kl_coef", "0.75")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--no_such_flag", "1"], ["--no_such_flag"]),
        (["stray"], ["stray"]),
        (["--rl.kl_coef", "1"], ["--rl.kl_coef"]),
        (["--kl_coef"], ["--kl_coef", "Expected 1"]),
        (["--kl_coef", "much"], ["--kl_coef", "float", "much"]),
        (["--batch_size", "12.5"], ["--batch_size", "int", "12.5"]),
        (["--parallel", "threads"], ["--parallel", "shard_map", "pmap", "threads"]),
        (["--kl_estimator", "k9"], ["--kl_estimator", "k1", "k3", "full", "k9"]),
        (["--reward_clip_range", "1"], ["--reward_clip_range", "1"]),
        (["--kl_coef", "-1"], ["kl_coef", "at least 0", "-1.0"]),
        (["--gamma", "1.5"], ["gamma", "[0, 1]", "1.5"]),
        (["--cliprange", "nan"], ["cliprange", "above 0", "nan"]),
        (["--temperature", "0"], ["temperature", "above 0", "0.0"]),
        (["--response_length", "0"], ["response_length", "above 0", "0"]),
        (["--max_grad_norm", "0"], ["max_grad_norm", "above 0", "0.0"]),
        (["--seed", "-1"], ["seed", "[0, 2^32)", "-1"]),
        (["--seed", "4294967296"], ["seed", "[0, 2^32)", "4294967296"]),
        (["--kl_coef", "inf"], ["kl_coef", "finite", "inf"]),
        (["--adam_beta1", "1"], ["adam_beta1", "[0, 1)", "1.0"]),
        (["--rl_sizes", "17:2"], ["rl_sizes", "2 to 16", "17:2"]),
        (["--rl_sizes", "3-5"], ["rl_sizes", "objects:rows", "3-5"]),
        (["--batch_size", "30", "--num_mini_batches", "4"], ["batch_size", "multiple of num_mini_batches (4)", "30"]),
        (["--headline_split", "dev"], ["headline_split", "test_longer", "'dev'"]),
        (["--eval_splits", "test"], ["headline_split", "eval_splits ('test',)", "'test_longer'"]),
        (["--preset", "huge"], ["preset", "default", "tiny", "'huge'"]),
        (["--config", "/no/such.yaml"], ["config", "/no/such.yaml", "No such file"]),
        (["--config"], ["--config"]),
        (["--resume"], ["resume", "--output_dir"]),
    ],
)
def test_parse_cli_names_a_bad_flag_in_one_line(args, named):
    message = error_line(*args)
    assert [part for part in named if part not in message] == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("no_such_key: 1", ["no_such_key"]),
        ("ppo:\n  kl_coef: 0.1", ["ppo"]),  # nested: the groups are not keys
        ("kl_coef: much", ["kl_coef", "float", "'much'"]),
        ("kl_coef: {a: 1}", ["kl_coef", "float", "{'a': 1}"]),
        ("kl_coef: [0.1]", ["kl_coef", "float", "[0.1]"]),
        ("kl_coef:", ["kl_coef", "float", "None"]),
        ("dataset:", ["dataset", "str", "None"]),
        ("dataset: {a: 1}", ["dataset", "str", "{'a': 1}"]),
        ("batch_size: 64.5", ["batch_size", "int", "64.5"]),
        ("batch_size: true", ["batch_size", "int", "True"]),
        ("whiten_rewards: 5", ["whiten_rewards", "bool", "5"]),
        ("parallel: threads", ["parallel", "shard_map, pmap", "'threads'"]),
        ("kl_coef: -1", ["kl_coef", "at least 0", "-1.0"]),
        ("batch_size: 30\nnum_mini_batches: 4", ["batch_size", "num_mini_batches (4)", "30"]),
        ("reward_clip_range: 1", ["reward_clip_range", "1"]),
        ("reward_clip_range: [-1, 0, 1]", ["reward_clip_range", "[-1, 0, 1]"]),
        ("reward_clip_range: [low, high]", ["reward_clip_range", "['low', 'high']"]),
        ("eval_splits: []", ["headline_split", "eval_splits ()"]),
        ("1: 2", ["given.yaml", "1"]),
        ('"a\\nb": 2', [r"'a\nb': expected the name of a setting"]),
        ("config: other.yaml", ["given.yaml", "'config'"]),
        ("preset: huge", ["preset", "default, ", "'huge'"]),
        ("preset: [tiny, data/huge]", ["preset", "expected one of planning-multi for data", "'huge'"]),
        ("preset: [[tiny]]", ["preset", "default, ", "['tiny']"]),
        ("- seed", ["given.yaml", "flag: value", "list"]),
        ("", ["given.yaml", "NoneType"]),
        ("seed: [1", ["given.yaml", "not YAML"]),
        ("seed: 1\nkl_coef: 0.1\nseed: 2", ["given.yaml", "expected seed once, got it in lines 1, 3"]),
    ],
)
def test_parse_cli_names_a_bad_yaml_key_in_one_line(tmp_path, text, named):
    message = error_line("--config", yaml_file(tmp_path, text))
    assert [part for part in named if part not in message] == []


def test_numbers_of_yaml_have_no_base_60(tmp_path):
    text = "test_sizes: 4:16\nrl_sizes: '5:100'\nseed: 12\nkl_coef: 0.5\nlearning_rate: 1.0e-5\ndata_seed: 0x10"
    config = parse("--config", yaml_file(tmp_path, text))
    assert (config.data.test_sizes, config.data.rl_sizes) == ("4:16", "5:100")
    assert (config.run.seed, config.rl.kl_coef, config.optimizer.learning_rate) == (12, 0.5, 1e-5)
    assert config.data.data_seed == 16


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--use_peft"], True),
        (["--use_peft", "True"], True),
        (["--use-peft=true"], True),
        (["--use_peft", "False"], False),
        (["--use_peft", "--use_peft=False"], False),
        (["--no_use_peft"], False),
    ],
)
def test_switches_may_be_given_a_value(args, expected):
    assert parse("--preset", "tiny", *args, "--seed", "3").peft.use_peft is expected


def test_reward_clip_range_takes_whole_numbers_from_flags_and_yaml(tmp_path):
    by_flag = parse("--reward_clip_range", "-1", "1")
    by_yaml = parse("--config", yaml_file(tmp_path, "reward_clip_range: [-1, 1]"))
    assert by_flag.rl.reward_clip_range == by_yaml.rl.reward_clip_range == (-1.0, 1.0)
    assert {type(end) for end in by_yaml.rl.reward_clip_range} == {float}
    none = parse("--config", yaml_file(tmp_path, "reward_clip_range:"))
    assert none.rl.reward_clip_range is None


@pytest.mark.parametrize("kind", ["binary", "folder"])
def test_read_yaml_names_a_file_that_is_no_text(tmp_path, kind):
    path = tmp_path / "given.yaml"
    path.mkdir() if kind == "folder" else path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"given\.yaml"):
        read_yaml(path)


def test_parse_cli_reads_yaml_values_in_the_types_of_their_fields(tmp_path):
    text = (
        "learning_rate: 1e-4\nmax_grad_norm:\nwhiten_rewards: yes\neval_splits: [dev, test_longer]\nval_timeout_s: 5\n"
    )
    parsed = parse("--config", yaml_file(tmp_path, text))
    assert parsed.optimizer.learning_rate == 1e-4  # PyYAML reads 1e-4 as text
    assert parsed.optimizer.max_grad_norm is None
    assert parsed.rl.whiten_rewards is True
    assert parsed.data.eval_splits == ("dev", "test_longer")
    assert (parsed.reward.val_timeout_s, type(parsed.reward.val_timeout_s)) == (5.0, float)


CHANGES = {
    "train": "--preset tiny --seed 7 --learning_rate 1e-5 --value_model_path some:folder --whiten_rewards"
    " --eval_steps 3 --eval_splits test_longer dev --max_grad_norm None --lam 0.1 --reward_clip_range -1 0.1"
    " --save_steps 0.1 --stop_token_id 0 --min_p 0.1 --kl_estimator full --adap_kl_ctrl --kl_target 6",
    "sft": "--seed 7 --learning_rate 0.30000000000000004 --data_seed 3 --model_path 7 --adam_epsilon 1e-9",
    "evaluate": "--seed 7 --model null --eval_validator builtin --train_sizes 3:1",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("changed", [False, True])
def test_write_yaml_is_read_back_by_config_as_the_same_configuration(tmp_path, command, changed):
    path = tmp_path / "config.yaml"
    made = parse(*(CHANGES[command].split() if changed else []), "--output_dir", "1e5", command=command)
    write_yaml(made, path)
    back = parse("--config", str(path), command=command)
    # Where a run writes and where its values came from is not part of what it computes.
    forget = {"preset": None, "config": None, "output_dir": None}
    assert made.run.output_dir == "1e5" and back.run.output_dir is None
    assert replace(back, **forget) == replace(made, **forget)


def test_write_yaml_starts_with_the_command_and_is_read_back_as_without(tmp_path):
    plain, commented = tmp_path / "plain.yaml", tmp_path / "commented.yaml"
    write_yaml(parse("--kl_coef", "0.5"), plain)
    write_yaml(parse("--kl_coef", "0.5"), commented, command="python -m jaxppo.train --kl_coef 0.5")
    first, rest = commented.read_text(encoding="utf-8").split("\n", 1)
    assert first == "# command: python -m jaxppo.train --kl_coef 0.5"
    assert rest == plain.read_text(encoding="utf-8")
    assert parse("--config", str(commented)).rl.kl_coef == 0.5


@pytest.mark.parametrize(
    "end", quick_first(2, ["\n", "\x85", "\r\n", "\r", "\u2028", "\u2029", "\x0b", "\x0c", "\x1e"])
)
def test_write_yaml_keeps_a_command_of_several_lines_in_the_comment(tmp_path, end):
    path = tmp_path / "config.yaml"
    write_yaml(parse(), path, command=f"x 'a{end}kl_coef: 7.5' \x00\x1b\ud800")
    assert path.read_text(encoding="utf-8").startswith("# command: x 'a\n# kl_coef: 7.5' \\x00\\x1b\\ud800\nseed: ")
    assert parse("--config", str(path)).rl == parse().rl


def test_write_yaml_leaves_secrets_out(tmp_path):
    path, secret = tmp_path / "config.yaml", "hf_" + "a1" * 17
    config = parse("--dataset", f"https://user:{secret}@host/x", "--eval_splits", "test_longer", secret)
    write_yaml(config, path, command=f"x --dataset https://user:{secret}@host/x --api_key hidden --seed 1")
    assert secret not in path.read_text(encoding="utf-8")
    assert "--api_key <redacted> --seed 1\n" in path.read_text(encoding="utf-8")
    saved = read_yaml(path)
    assert saved["dataset"] == "https://<redacted>@host/x"
    assert saved["eval_splits"] == ["test_longer", "<redacted>"]
    assert saved["stop_token_id"] is None and saved["seed"] == 42


def test_a_preset_goes_over_those_that_it_names_the_later_over_the_earlier():
    shared = preset_values("data", "planning-multi")
    for command in "train", "self_train", "sft", "evaluate":
        values = preset_values(command, "planning-multi")
        assert "preset" not in values and shared.items() <= values.items()
    values, default = preset_values("train", "planning-multi"), preset_values("train", "default")
    assert values["batch_size"] == default["batch_size"]  # of the first base
    assert values["learning_rate"] != default["learning_rate"]  # its own over both


def test_of_two_bases_the_later_one_wins(tmp_path, monkeypatch):
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
    with pytest.raises(ConfigError, match="preset: expected one of low, own for train, got 'high'"):
        preset_values("train", "high")


@pytest.mark.parametrize("command", COMMANDS)
def test_presets_of_every_command_are_complete_configurations(command):
    folder = sources.resources.files("jaxppo.config") / "presets" / command
    names = [entry.name.removesuffix(".yaml") for entry in folder.iterdir()]
    assert "default" in names
    for name in names:
        assert parse("--preset", name, command=command).run.preset == name


def test_help_shows_the_docstrings_and_defaults_of_all_groups(capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert not stop.value.code
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert (
        "Weight of the KL penalty to the reference policy in the reward, at the start; grpo: of k3 in the loss; "
        "0 needs no reference (alias --beta)." in shown
    )
    assert "Completions to sample over the whole run, rounded up to whole updates; default: num_train_epochs" in shown
    assert "--parallel {shard_map,pmap,fsdp}" in shown
    assert [name for name in flatten(TrainConfig()) if f"--{name} " not in shown and f"--{name}," not in shown] == []


def test_flatten_and_replace_reach_every_group():
    changed = replace(TrainConfig(), kl_coef=0.5, seed=7, headline_split="test")
    assert (changed.rl.kl_coef, changed.run.seed, changed.headline_split) == (0.5, 7, "test")
    differing = {name for name, value in flatten(TrainConfig()).items() if flatten(changed)[name] != value}
    assert differing == {"kl_coef", "seed", "headline_split"}
    with pytest.raises(ConfigError, match="no_such"):
        replace(TrainConfig(), no_such=1)
    with pytest.raises(ConfigError, match="kl_coef"):
        replace(TrainConfig(), kl_coef=-1.0)


THINKING = {"enable_thinking": False, "date": "26 Jul 2024", "parts": [1, {"two": None}]}


def test_a_mapping_is_json_on_the_command_line_and_a_mapping_in_a_file_and_survives_both_ways(tmp_path):
    parsed = parse("--chat_template_kwargs", json.dumps(THINKING))
    assert parsed.data.chat_template_kwargs == THINKING
    assert parse("--chat_template_kwargs", "None").data.chat_template_kwargs is None
    write_yaml(parsed, tmp_path / "config.yaml")
    assert read_yaml(tmp_path / "config.yaml")["chat_template_kwargs"] == THINKING
    again = parse("--config", str(tmp_path / "config.yaml"))
    assert flatten(again) | {"config": None} == flatten(parsed) | {"config": None}
    over = parse("--config", str(tmp_path / "config.yaml"), "--chat_template_kwargs={}")
    assert over.data.chat_template_kwargs == {}
    assert parse("--preset", "qwen3-planning").data.chat_template_kwargs == {"enable_thinking": False}


def test_a_resumed_run_keeps_its_mapping(tmp_path):
    parsed = parse("--chat_template_kwargs", json.dumps(THINKING))
    write_yaml(parsed, tmp_path / "config.yaml")
    before = read_yaml(tmp_path / "config.yaml")
    check_settings(before, plain_values(flatten(parsed)), parsed, "the run")
    other = parse("--chat_template_kwargs", '{"enable_thinking": true}')
    with pytest.raises(ConfigError, match=r"got chat_template_kwargs \{'enable_thinking': True\} \(was \{'enable"):
        check_settings(before, plain_values(flatten(other)), other, "the run")


@pytest.mark.parametrize(
    ("in_json", "in_yaml", "message"),
    [
        ("{broken", "'{broken'", "expected a mapping, in JSON such as .*, got '{broken'"),
        ("[1]", "[1]", r"expected a mapping, in JSON such as .*, got \[1\]"),
        ("3", "3", "expected a mapping, in JSON such as .*, got 3"),
        ("{'a': 1}", "text", "expected a mapping, in JSON such as .*, got "),
        ('{"tokenize": true}', "{tokenize: true}", "expected arguments for the text of the template, got 'tokenize'"),
        ('{"a": NaN}', "{a: .nan}", "expected texts as keys, and values that JSON can say, got {'a': nan}"),
        (None, "{1: 2}", "expected texts as keys, and values that JSON can say, got {1: 2}"),
        (None, "{day: 2024-07-26}", "expected texts as keys, and values that JSON can say, got"),
    ],
)
def test_a_bad_mapping_is_one_line_that_names_the_field(tmp_path, in_json, in_yaml, message):
    if in_json is not None:
        assert re.match(f"chat_template_kwargs: {message}", error_line("--chat_template_kwargs", in_json))
    given = yaml_file(tmp_path, f"chat_template_kwargs: {in_yaml}\n")
    assert re.match(f"chat_template_kwargs: {message}", error_line("--config", given))
