"""Files and requests that are nearly right: an answer or one line of error, soon, and never anything else.

Each text is one that is read, with one to three places changed into something that does not belong there: another kind
of value, a number beyond all bounds, a character that is none, the end in the middle. `--hypothesis-seed=N` repeats.
"""

import contextlib
import copy
import json
import os
import resource
import shutil
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxppo import hf
from jaxppo.config import DataConfig, EvaluateConfig, RewardModelConfig, SelfTrainConfig, SFTConfig, TrainConfig
from jaxppo.config.sources import flatten, parse_cli, plain_values
from jaxppo.data import load_split
from jaxppo.errors import JaxppoError
from jaxppo.planning import parse_domain, parse_problem
from jaxppo.planning.domains import BLOCKSWORLD
from jaxppo.planning.language.sexpr import read_form
from jaxppo.report.run_page import write_report
from jaxppo.run.checkpoints import Checkpoints
from tests.one_layer import ONE_LAYER
from tests.run.test_checkpoints import saved
from tests.test_reward_server import length, post, running

LIMIT_S, LIMIT_MIB = 2.0, 500
CONFIGS = {"train": TrainConfig, "sft": SFTConfig, "reward_model": RewardModelConfig, "evaluate": EvaluateConfig}
CONFIGS |= {"self_train": SelfTrainConfig}

NUMBERS = st.sampled_from([0, -1, 1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("nan")])
TEXTS = st.sampled_from(["", " ", "\0", "\n", "a\nb", "\ud800", "\u202e", "é", "-1", "none", "../..", "[", "x" * 5000])
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=8)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2))

N_EXAMPLES = int(os.environ.get("JAXPPO_FUZZ_EXAMPLES", "100"))
"""For each test; thousands in a hunt."""

pytestmark = pytest.mark.full
fuzz = settings(max_examples=N_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@contextlib.contextmanager
def declared():
    """What happens inside may raise errors of one line that are meant for users, within limits of time and memory."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    except JaxppoError as error:
        assert str(error).strip() and "\n" not in str(error)
    except SystemExit as error:  # --help
        assert error.code == 0
    assert time.process_time() - start < LIMIT_S
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < LIMIT_MIB


def places(value, at=()):
    """Every place in nested lists and mappings."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def changed(draw, value):
    """A copy in which up to three places have another value, or are gone."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from(list(places(value))))
        if not at:
            return draw(VALUES)
        parent = value
        for key in at[:-1]:
            parent = parent[key]
        if draw(st.integers(0, 3)):
            parent[at[-1]] = draw(VALUES)
        else:
            del parent[at[-1]]
    return value


def damaged(draw, content: bytes) -> bytes:
    """Bytes of which some are others, missing, twice there, or cut off."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at, size = draw(st.integers(0, max(0, len(content) - 1))), draw(st.integers(0, 40))
        content[at : at + size] = draw(
            st.sampled_from([b"", b"\0", b"\xff", b"{", b'"', b"9" * 50, bytes(content[at : at + 80]), b"-1", b"[["])
        )
        if not draw(st.integers(0, 9)):
            del content[at:]
    return bytes(content)


def as_json(value) -> bytes:
    return json.dumps(value).encode()


# --- settings


@fuzz
@given(data=st.data(), command=st.sampled_from(sorted(CONFIGS)))
def test_yaml(data, command, tmp_path_factory):
    values = plain_values(flatten(CONFIGS[command]()))
    names = data.draw(st.lists(st.sampled_from(sorted(values)) | TEXTS, max_size=4))
    content = yaml.safe_dump({name: data.draw(VALUES) for name in names}, allow_unicode=True)
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with declared():
        parse_cli(CONFIGS[command], command, ["--config", str(path)])


@fuzz
@given(data=st.data(), command=st.sampled_from(sorted(CONFIGS)))
def test_flags(data, command):
    names = [f"--{name}" for name in flatten(CONFIGS[command]()) if name not in ("config", "output_dir")]
    word = st.sampled_from(names) | TEXTS | NUMBERS.map(str) | st.text(max_size=5)
    words = data.draw(st.lists(word, max_size=5))
    with declared():
        parse_cli(CONFIGS[command], command, words)


# --- data


@pytest.fixture(scope="module")
def rows():
    return load_split(DataConfig(rl_sizes="3:2", test_sizes="3:1", test_longer_sizes="4:1"), "rl")


@fuzz
@given(data=st.data(), validator=st.sampled_from(["builtin", None]))
def test_rows(data, validator, rows, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "fuzz_rows"
    folder.mkdir(exist_ok=True)
    given_rows = changed(data.draw, rows)
    lines = given_rows if isinstance(given_rows, list) else [given_rows]
    content = b"".join(as_json(row) + b"\n" for row in lines)
    (folder / "rl.jsonl").write_bytes(damaged(data.draw, content) if data.draw(st.booleans()) else content)
    with declared():
        load_split(DataConfig(dataset=str(folder)), "rl", validator)


# --- PDDL

WORDS = """and or not when forall exists imply either = < >= + - * / increase assign ?x ?y on clear ontable a b object
block 5 0.1 1e5 -1 :types :predicates :functions :action :parameters :precondition :effect :derived :init :goal
:metric minimize total-cost (define) domain problem"""
LEAVES = st.sampled_from(WORDS.split())
FORMS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def plain(form):
    return [plain(part) for part in form] if isinstance(form, list) else str(form)


def write(form) -> str:
    return f"({' '.join(map(write, form))})" if isinstance(form, list) else str(form)


def regrown(draw, text):
    """PDDL of which some forms are others, grown from its words."""
    form = plain(read_form(text, "<fuzz>"))
    found = list(places(form))[1:]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.sampled_from(found))
        target = form
        with contextlib.suppress(IndexError, TypeError):  # gone by an earlier change
            for key in at[:-1]:
                target = target[key]
            if isinstance(target, list):
                target[at[-1]] = draw(FORMS)
    return write(form)


PROBLEM = """(define (problem p) (:domain blocksworld) (:objects a b)
    (:init (clear a) (on a b) (ontable b) (handempty)) (:goal (and (on b a))))"""


@fuzz
@given(data=st.data())
def test_pddl(data):
    domain, problem = BLOCKSWORLD.pddl, PROBLEM
    if data.draw(st.booleans()):
        domain = regrown(data.draw, domain)
    else:
        problem = regrown(data.draw, problem)
    with declared():
        parse_problem(problem, parse_domain(domain))


# --- models


@fuzz
@given(data=st.data(), name=st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "README.md"]))
def test_model_folders(data, name, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "fuzz_model"
    if not folder.exists():
        shutil.copytree(ONE_LAYER, folder)
    original = Path(ONE_LAYER) / name
    content = original.read_bytes()
    is_json = name.endswith(".json") and data.draw(st.booleans())
    if is_json and len(content) < 100_000:
        content = as_json(changed(data.draw, json.loads(content)))
    else:
        head, rest = content[:4000], content[4000:]
        content = damaged(data.draw, head) + rest
    (folder / name).write_bytes(content)
    try:
        with declared():
            hf.load_pretrained(folder)
        with declared():
            hf.load_tokenizer(folder)
    finally:
        shutil.copyfile(original, folder / name)


# --- runs


@fuzz
@given(data=st.data())
def test_checkpoints(data, tmp_path_factory):
    whole = tmp_path_factory.getbasetemp() / "fuzz_checkpoint"
    if not whole.exists():
        saved(whole, 1)
    folder = whole.with_name("fuzz_checkpoint_changed")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    path.write_bytes(damaged(data.draw, path.read_bytes()))
    with declared(), Checkpoints(folder, 2) as checkpoints:
        checkpoints.restore_params(None, lambda line: None)


MEASURED = {"mean_reward": 0.5, "validity": {"rate": 0.5, "low": 0.2, "high": 0.8, "n": 4}, "by_domain": {}}
RUN = {
    "metrics.jsonl": {"step": 1, "objective/kl": 0.5, "time/update_s": 1.0, "loss/policy": 0.1, "episode": 8},
    "samples.jsonl": {"step": 1, "prompt": "p", "completion": "c", "score": 1.0, "reward_plan": 1.0},
    "eval.json": {
        "headline_split": "test",
        "before": {"test": MEASURED},
        "after": {"test": MEASURED},
    },
}


@fuzz
@given(data=st.data(), name=st.sampled_from(sorted(RUN)))
def test_reports(data, name, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "fuzz_run"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    for other, content in RUN.items():
        (folder / other).write_bytes(as_json(content) + b"\n")
    content = as_json(changed(data.draw, RUN[name])) + b"\n"
    (folder / name).write_bytes(damaged(data.draw, content) if data.draw(st.booleans()) else content)
    with declared():
        write_report(folder)


# --- requests

REQUEST = {
    "model": "model",
    "messages": ["pa", "qb"],
    "prompts": ["p", "q"],
    "completions": ["a", "b"],
    "completion_ids": [[1, 2], [3]],
    "columns": {"grade": [0.25, 0.5]},
}


@pytest.fixture(scope="module")
def server():
    with running(length) as url:
        yield url


@fuzz
@given(data=st.data())
def test_requests(data, server):
    content = as_json(changed(data.draw, REQUEST))
    answer = post(server, damaged(data.draw, content) if data.draw(st.booleans()) else content)
    body = answer.json()
    assert answer.status_code in (200, 400, 413, 422)
    assert list(body) == ["error"] if answer.status_code != 200 else "scores" in body
