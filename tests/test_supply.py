"""What comes from elsewhere stays data: nothing read becomes code, and every package of an installation is known."""

import ast
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import ROOT

MODULES = sorted((ROOT / "jaxppo").rglob("*.py"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Whatever can run what a file says, with torch installed or without.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "yaml.unsafe_load", "joblib.load"}
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "pty"}
FORBIDDEN_KEYWORDS = {"shell", "trust_remote_code", "allow_pickle"}
# A run's own processes greet one another so; nothing of a file or of the outside is read.
OWN_PROCESSES = "parallel/processes.py"


def violations(text: str) -> list[str]:
    """What a module says that would let data become code."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            found += [name] * (name in FORBIDDEN_CALLS)
            found += [key for key in FORBIDDEN_KEYWORDS & keywords.keys() if ast.unparse(keywords[key]) != "False"]
            found += [name] * (name == "yaml.load" and len(node.args) + len(keywords) < 2)
            if name == "torch.load" and ast.unparse(keywords.get("weights_only", ast.Constant(None))) != "True":
                found.append(name)
    return found


def test_a_violation_is_seen():
    for text in (
        "import pickle",
        "from pickle import loads",
        "subprocess.run('ls', shell=True)",
        "torch.load(path)",
        "AutoModel.from_pretrained(name, trust_remote_code=config.trust)",
        "numpy.load(path, allow_pickle=True)",
        "eval(text)",
        "yaml.load(text)",
    ):
        assert violations(text), text


def test_nothing_that_is_read_becomes_code():
    found = {path.relative_to(ROOT / "jaxppo").as_posix(): violations(path.read_text("utf-8")) for path in MODULES}
    assert len(found) > 200
    assert {name: calls for name, calls in found.items() if calls} == {OWN_PROCESSES: ["pickle"]}


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
