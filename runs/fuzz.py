"""Feeds files and requests that are nearly right: an answer or one line of error, and never anything else.

    python runs/fuzz.py [--examples 100] [--seed 0] [--kinds flags rows ...]

Each text is one that is read, with one to three places changed into something that does not belong there: another kind
of value, a number beyond all bounds, a character that is none, the end in the middle. An input that raises anything
else is made as small as it can be and printed. A hunt, and no part of CI: what it has found stands as an example in the
tests of the rooms. Last run with 3,000 examples of each kind on 2026-11-24 (`docs/experiments/faults.md`).
"""

import argparse
import contextlib
import copy
import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from jaxppo import hf, reward_server
from jaxppo.config import (
    DataConfig,
    EvaluateConfig,
    RewardModelConfig,
    SelfTrainConfig,
    SFTConfig,
    TrainConfig,
)
from jaxppo.config.sources import flatten, parse_cli
from jaxppo.data import load_split
from jaxppo.errors import JaxppoError
from jaxppo.report.run_page import write_report

MODEL = hf.ASSETS / "blocksworld-sft"
NUMBERS = st.sampled_from(
    [0, -1, 1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("nan")]
)
TEXTS = st.sampled_from(
    ["", " ", "\0", "\n", "a\nb", "\ud800", "\u202e", "é", "-1", "none", "../..", "[", "x" * 5000]
)
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=8)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2)
)


def places(value, at=()):
    """Every place in nested lists and mappings."""
    yield at
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
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
    """Bytes of which some are changed, missing, doubled, or cut off."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at, size = draw(st.integers(0, max(0, len(content) - 1))), draw(st.integers(0, 40))
        content[at : at + size] = draw(
            st.sampled_from(
                [
                    b"",
                    b"\0",
                    b"\xff",
                    b"{",
                    b'"',
                    b"9" * 50,
                    bytes(content[at : at + 80]),
                    b"-1",
                    b"[[",
                ]
            )
        )
        if not draw(st.integers(0, 9)):
            del content[at:]
    return bytes(content)


def as_json(value) -> bytes:
    return json.dumps(value).encode() + b"\n"


def maybe_damaged(draw, content: bytes) -> bytes:
    return damaged(draw, content) if draw(st.booleans()) else content


CONFIGS = {
    "train": TrainConfig,
    "sft": SFTConfig,
    "reward_model": RewardModelConfig,
    "evaluate": EvaluateConfig,
}
CONFIGS |= {"self_train": SelfTrainConfig}


def settings_in_yaml(draw, folder):
    command = draw(st.sampled_from(sorted(CONFIGS)))
    names = draw(st.lists(st.sampled_from(sorted(flatten(CONFIGS[command]()))) | TEXTS, max_size=4))
    content = yaml.safe_dump({name: draw(VALUES) for name in names}, allow_unicode=True)
    (folder / "fuzz.yaml").write_bytes(content.encode("utf-8", "surrogatepass"))
    parse_cli(CONFIGS[command], command, ["--config", str(folder / "fuzz.yaml")])


def flags(draw, folder):
    command = draw(st.sampled_from(sorted(CONFIGS)))
    names = [
        f"--{name}" for name in flatten(CONFIGS[command]()) if name not in ("config", "output_dir")
    ]
    word = st.sampled_from(names) | TEXTS | NUMBERS.map(str) | st.text(max_size=5)
    parse_cli(CONFIGS[command], command, draw(st.lists(word, max_size=5)))


def rows(draw, folder):
    whole = load_split(DataConfig(sizes=("rl=3:2", "test=3:1", "test_longer=4:1")), "rl")
    found = changed(draw, whole)
    lines = found if isinstance(found, list) else [found]
    (folder / "rl.jsonl").write_bytes(maybe_damaged(draw, b"".join(map(as_json, lines))))
    load_split(DataConfig(dataset=str(folder)), "rl", draw(st.sampled_from(["builtin", None])))


def a_model_folder(draw, folder):
    name = draw(
        st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "README.md"])
    )
    shutil.copytree(MODEL, folder / "model", dirs_exist_ok=True)
    content = (MODEL / name).read_bytes()
    if name.endswith(".json") and len(content) < 100_000 and draw(st.booleans()):
        content = as_json(changed(draw, json.loads(content)))
    else:
        content = damaged(draw, content[:4000]) + content[4000:]
    (folder / "model" / name).write_bytes(content)
    with refused_in_one_line():
        hf.load_pretrained(folder / "model")
    hf.load_tokenizer(folder / "model")


MEASURED = {
    "mean_reward": 0.5,
    "validity": {"rate": 0.5, "low": 0.2, "high": 0.8, "n": 4},
    "by_domain": {},
}
RUN = {
    "metrics.jsonl": {
        "step": 1,
        "objective/kl": 0.5,
        "time/update_s": 1.0,
        "loss/policy": 0.1,
        "episode": 8,
    },
    "samples.jsonl": {
        "step": 1,
        "prompt": "p",
        "completion": "c",
        "score": 1.0,
        "reward_plan": 1.0,
    },
    "eval.json": {
        "before": {"test": MEASURED},
        "after": {"test": MEASURED},
    },
}


def a_run(draw, folder):
    (folder / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    for name, content in RUN.items():
        (folder / name).write_bytes(as_json(content))
    name = draw(st.sampled_from(sorted(RUN)))
    (folder / name).write_bytes(maybe_damaged(draw, as_json(changed(draw, RUN[name]))))
    write_report(folder)


@contextlib.contextmanager
def refused_in_one_line():
    """What happens inside may raise errors of one line that are meant for users."""
    try:
        yield
    except JaxppoError as error:
        assert str(error).strip() and "\n" not in str(error)
    except SystemExit as error:  # --help
        assert error.code == 0


REQUEST = {
    "model": "model",
    "messages": ["pa", "qb"],
    "prompts": ["p", "q"],
    "completions": ["a", "b"],
}
REQUEST |= {"completion_ids": [[1, 2], [3]], "columns": {"grade": [0.25, 0.5]}}


def length(completions, **columns):
    """Reward each completion with its number of characters."""
    return [float(len(text)) for text in completions]


@contextlib.contextmanager
def reward_server_url() -> Iterator[str]:
    """Serve `length` on a free port; gives the address."""
    server = reward_server.make_server(reward_server.make_app(length), stop_timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def request(draw, url):
    """A request always has an answer, whether with scores or with one error."""
    body = maybe_damaged(draw, as_json(changed(draw, REQUEST)))
    headers = {"Content-Type": "application/json"}
    answer = httpx2.post(url, content=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code in (200, 400, 413, 422)
    assert (
        list(answer.json()) == ["error"] if answer.status_code != 200 else "scores" in answer.json()
    )


READERS = {
    read.__name__: read for read in (settings_in_yaml, flags, rows, a_model_folder, a_run, request)
}


def hunt(name: str, target, examples: int, first_seed: int) -> None:
    """Give one reader many inputs; `target` is the folder it writes to, or the server's address."""

    @seed(first_seed)
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(data=st.data())
    def never_anything_else(data):
        with refused_in_one_line():
            READERS[name](data.draw, target)

    never_anything_else()
    print(f"{name}: {examples} examples, each read or refused in one line", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Hunt in every kind that is asked for; the first input that is neither read nor refused ends it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=READERS, default=list(READERS))
    args = parser.parse_args(argv)
    for name in args.kinds:
        if name == "request":
            with reward_server_url() as url:
                hunt(name, url, args.examples, args.seed)
            continue
        with tempfile.TemporaryDirectory() as folder:
            hunt(name, Path(folder), args.examples, args.seed)


if __name__ == "__main__":
    main()
