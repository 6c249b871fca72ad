"""Who may write into a run folder."""

import shutil

import pytest
import yaml

from jaxppo.config import RunConfig, SFTConfig, TrainConfig, paths
from jaxppo.config.sources import parse_cli, read_yaml, replace
from jaxppo.errors import ConfigError
from jaxppo.run import folder as run_folder


def claim(folder, **changes):
    config = replace(TrainConfig(), output_dir=str(folder), **changes)
    run_folder.claim(folder, config)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("resume", [False, True])
def test_claim_writes_into_a_missing_or_empty_folder_and_leaves_any_other_as_it_is(tmp_path_factory, tmp_path, resume):
    empty = tmp_path_factory.mktemp("empty")
    for folder in (empty / "deep" / "missing", tmp_path_factory.mktemp("empty")):
        claim(folder, resume=resume, kl_coef=0.125)
        assert read_yaml(folder / "config.yaml")["kl_coef"] == 0.125
    (tmp_path / "thesis.tex").write_text("years of work")
    for path in (tmp_path, tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "run"):
        with pytest.raises(ConfigError, match=f"^output_dir: .*{path}"):
            claim(path, resume=resume)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_claim_resumes_a_run_of_the_same_configuration_when_asked_to(tmp_path):
    changes = {
        "learning_rate": 1e-5,
        "max_grad_norm": None,
        "eval_splits": ("test_longer", "dev"),
        "reward_clip_range": (-1, 1),
        "stop_token": 0,
        "save_steps": 0.25,
        "chat_template_kwargs": {"date": "26 Jul 2024", "parts": [1, {"two": None}]},
        "preset": "tiny",
    }
    claim(tmp_path, **changes)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"^output_dir: .*--resume"):
        claim(tmp_path, **changes)
    claim(tmp_path, **changes, resume=True)
    # How a run is started and shown may change.
    claim(tmp_path, **(changes | {"resume": True, "quiet": True, "preset": "default", "config": "other.yaml"}))
    assert contents(tmp_path) == before


def test_claim_names_every_setting_in_which_a_resumed_run_differs(tmp_path):
    claim(tmp_path)
    before = contents(tmp_path)
    change = {
        "kl_coef": 0.5,
        "seed": 43,
        "quiet": True,
        "eval_splits": ("test_longer",),
        "chat_template_kwargs": {"a": True},
    }
    with pytest.raises(ConfigError, match=f"^config: .*{tmp_path}, got ") as refused:
        claim(tmp_path, **change, resume=True)
    differing = ["seed 43 (was 42)", "kl_coef 0.5 (was 0.05)", "chat_template_kwargs {'a': True} (was None)"]
    for difference in (*differing, "eval_splits ['test_longer'] (was ['test', 'test_longer'])"):
        assert difference in str(refused.value)
    assert "quiet" not in str(refused.value)
    assert contents(tmp_path) == before


def test_claim_compares_settings_that_one_of_the_two_does_not_know(tmp_path):
    claim(tmp_path, vf_coef=0.5)
    path = tmp_path / "config.yaml"
    text = path.read_text()
    # As if it had had its default.
    path.write_text(text.replace("kl_coef: 0.05\n", ""))
    claim(tmp_path, vf_coef=0.5, resume=True)
    with pytest.raises(ConfigError, match=r"got vf_coef 0\.1 \(was 0\.5\), kl_coef 0\.5 \(was 0\.05\); "):
        claim(tmp_path, kl_coef=0.5, resume=True)
    path.write_text(text + "old_setting: 7\n")
    with pytest.raises(ConfigError, match=r"got no old_setting \(was 7\); "):
        claim(tmp_path, vf_coef=0.5, resume=True)
    other = replace(SFTConfig(), output_dir=str(tmp_path), resume=True)  # of another command
    with pytest.raises(ConfigError, match=r"no kl_coef \(was 0\.05\)"):
        run_folder.claim(tmp_path, other)


def test_default_folder_is_the_given_one_or_a_new_name():
    assert str(run_folder.default_folder("train", RunConfig(output_dir="my/run"))) == "my/run"
    made = run_folder.default_folder("train", RunConfig(preset="tiny"))
    assert made.parent.name == "outputs" and made.name.startswith("train-tiny-")


def test_write_json_is_read_back_and_keeps_the_old_file_where_the_new_content_fails(tmp_path):
    path, content = tmp_path / "eval.json", {"before": {"rate": 0.37}, "after": None}
    assert run_folder.read_json(path) == {}
    run_folder.write_json(path, content)
    with pytest.raises(TypeError):
        run_folder.write_json(path, {"new": object()})
    assert run_folder.read_json(path) == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["eval.json"]


def test_claim_takes_over_a_folder_whose_claim_was_killed(tmp_path, monkeypatch):
    def killed(*_):
        shutil.copytree(tmp_path, tmp_path.with_name("killed"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(paths.os, "replace", killed)
        claim(tmp_path)
    left = tmp_path.with_name("killed")
    assert len(list(left.iterdir())) == 2  # the lock, and half of the settings
    claim(left)
    assert (left / "config.yaml").exists()


def test_claim_lets_one_of_two_win(tmp_path, monkeypatch):
    """Both see a free folder; the second finds the run when it has the lock."""
    claim(tmp_path / "run")
    first = contents(tmp_path / "run")
    check, answers = run_folder.check, iter([False])
    monkeypatch.setattr(run_folder, "check", lambda *given: next(answers, True) and check(*given))
    with pytest.raises(ConfigError, match=r"^output_dir: "):
        claim(tmp_path / "run")
    assert contents(tmp_path / "run") == first


def test_a_finished_run_that_is_given_more_steps_is_unfinished_until_it_has_taken_them(tmp_path):
    """Also of a command whose evaluations have no `before`."""
    folder = tmp_path / "run"

    def begun(total_episodes, **settings):
        config = replace(SFTConfig(), output_dir=str(folder), total_episodes=total_episodes, **settings)
        return run_folder.begin("sft", config)

    first = begun(64)
    with first.claimed():
        first.write_evals({"test": {"validity": 0.5}})
    assert begun(64, resume=True).is_finished()
    longer = begun(128, resume=True, allow_changes=("total_episodes",))
    assert not longer.is_finished()
    with longer.claimed():
        longer.keep_settings()
    assert not begun(128, resume=True).is_finished()


def test_a_resume_that_finds_no_run_is_warned_of(tmp_path, capsys):
    config = replace(TrainConfig(), output_dir=str(tmp_path / "frist"), resume=True)
    run = run_folder.begin("train", config)
    assert not run.is_finished()
    out = capsys.readouterr().out
    assert out.startswith(f"warning: output_dir: {run.folder} ") and out.count("\n") == 1


@pytest.mark.parametrize(("old", "name"), [("", None), ("lam_value: 0.5\n", "lam_value"), ("audit_rate: 0.5\n", None)])
def test_a_run_of_an_older_version_goes_on_unless_it_had_what_is_gone(tmp_path, old, name):
    flags = ["--output_dir", str(tmp_path)]
    config = parse_cli(TrainConfig, "train", ["--preset", "tiny", *flags])
    run_folder.claim(tmp_path, config)
    path = tmp_path / "config.yaml"
    now = read_yaml(path)
    del now["sizes"]
    before = {"rl_sizes": "4:24", "test_sizes": "4:16", "test_longer_sizes": "5:32", "length_penalty": 0.0}
    path.write_text(yaml.safe_dump(now | before) + old)
    resume = [*flags, "--resume"]
    if name is None:
        config = parse_cli(TrainConfig, "train", resume)
        assert run_folder.check(tmp_path, config) and config.data.part("sizes", "test") == "4:16"
    else:
        with pytest.raises(ConfigError, match=f"^{name}: "):
            parse_cli(TrainConfig, "train", resume)
