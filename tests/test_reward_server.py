"""The reward server: what it answers, whom, in which order; and that a score over HTTP is the score in process."""

import contextlib
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
import uvicorn

from jaxppo import reward_server
from jaxppo.config import RewardServerConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, DataError, ValidatorError
from jaxppo.planning import parse_action
from jaxppo.planning.datasets.rows import build_split
from jaxppo.reward_functions.http_client import RewardClient, RewardError
from jaxppo.reward_functions.http_contract import TOKEN_VARIABLE, read_answer
from jaxppo.reward_functions.plan import PlanScoring, make_plan_reward
from jaxppo.reward_server import make_app, make_function, serve
from jaxppo.rewards import checked
from tests import ROOT

TOKEN = "tk-3x4mpl3.of/a+token=="
PATIENCE_S = 60.0  # for what comes at once unless the machine is busy or something is broken
PLAIN = {"trust_env": False, "verify": False}  # no proxies, and no time spent on certificates


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@contextlib.contextmanager
def running(reward, **options):
    """The application on a free port, by uvicorn in a thread; gives its address."""
    server = uvicorn.Server(reward_server.server_config(make_app(reward, **options), stop_timeout_s=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(PATIENCE_S)


def post(url, body, headers=None, **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (headers or {})
    return httpx2.post(url, content=content, headers=headers, timeout=PATIENCE_S, **PLAIN, **options)


def length(completions, **columns):
    return [float(len(text)) for text in completions]


class Counting:
    """`length`, and how often it was asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, **columns):
        self.calls += 1
        return length(completions)


@pytest.fixture(scope="module")
def open_server():
    """A server without a token, for tests that only look at single answers: its address and its function."""
    reward = Counting()
    with running(reward) as url:
        yield url, reward


@pytest.fixture(scope="module")
def token_server():
    """The same with a token."""
    reward = Counting()
    with running(reward, token=TOKEN) as url:
        yield url, reward


def graded(prompts, completions, completion_ids, *, grade, log_metric, log_extra, weight=2.0):
    log_metric("reward/grade", float(np.mean(grade)))
    log_metric("reward/odd", float("nan"))
    log_extra("ids", completion_ids)
    return np.array(grade) * weight


# --- answers


def test_server_answers_llama_factorys_request():
    with running(length) as url:
        for path in ("", "/", "/score"):
            answer = post(url + path, {"model": "model", "messages": ["ab", "", "ünï🙂"]})
            assert (answer.status_code, answer.json()["scores"]) == (200, [2.0, 0.0, 4.0])
            assert answer.headers["content-type"] == "application/json"
        assert post(url, {"messages": []}).json() == {"scores": []}


def test_server_gives_a_function_everything_it_takes():
    body = {
        "messages": ["pa", "qb"],
        "prompts": ["p", "q"],
        "completions": ["a", "b"],
        "completion_ids": [[1, 2], [3]],
        "columns": {"grade": [0.25, 0.5], "unused": [{"x": [None]}, 1]},
    }
    with running(graded) as url:
        assert post(url, body).json() == {
            "scores": [0.5, 1.0],
            "metrics": {"reward/grade": 0.375, "reward/odd": None},
            "extras": {"ids": [[1, 2], [3]]},
        }


def test_server_takes_what_a_run_takes():
    async def awaited(completions, log_extra):
        log_extra("odd", iter([float("nan"), {1}]))
        return [1.0, None]

    with running(awaited) as url:
        answer = post(url, {"messages": ["a", "b"]}).json()
    assert answer == {"scores": [1.0, None], "metrics": {}, "extras": {"odd": [None, "{1}"]}}


def test_server_passes_prompts_and_completions_apart():
    seen = {}

    def note(**arguments):
        seen.update(arguments)
        return [None, np.float32(0.5)]

    body = {"messages": ["pa", "qb"], "prompts": ["p", "q"], "completions": ["a", "b"], "columns": {"c": [1, 2]}}
    with running(note) as url:
        assert post(url, body).json()["scores"] == [None, 0.5]
        assert {name: seen[name] for name in ("prompts", "completions", "completion_ids", "c")} == {
            "prompts": ["p", "q"],
            "completions": ["a", "b"],
            "completion_ids": [[], []],
            "c": [1, 2],
        }
        post(url, {"messages": ["pa", "qb"]})
    assert seen["prompts"] == ["", ""] and seen["completions"] == ["pa", "qb"]


def random_completions(rows, rng):
    """Reference plans, whole, cut, shuffled or broken."""
    texts = []
    for row in rows:
        actions = [" ".join(parse_action(action)) for action in row["reference_plan"]]
        kind = rng.choice(["whole", "cut", "shuffled", "junk"])
        if kind == "cut":
            actions = actions[: rng.randrange(len(actions))]
        elif kind == "shuffled":
            rng.shuffle(actions)
        texts.append(" ; ".join(actions) + (" ; )(" if kind == "junk" else ""))
    return texts


def scored(reward, rows, texts):
    """Scores, metrics and extras of a reward function, without the client's own counts."""
    metrics, extras = {}, {}
    values = reward(
        prompts=[row["prompt"] for row in rows],
        completions=texts,
        completion_ids=[[1]] * len(rows),
        log_metric=metrics.__setitem__,
        log_extra=extras.__setitem__,
        **{name: [row[name] for row in rows] for name in rows[0]},
    )
    return values, {name: value for name, value in metrics.items() if "reward_server/" not in name}, extras


def test_plan_reward_over_http_is_the_plan_reward():
    rows = build_split("test", sizes={4: 30}, seed=1, unique=True)
    texts = random_completions(rows, random.Random(0))
    expected = scored(make_plan_reward(), rows, texts)
    with running(make_plan_reward()) as url:
        assert scored(RewardClient(url, with_columns=True), rows, texts) == expected
        values, metrics, extras = scored(RewardClient(url, with_columns=True, batch_size=7), rows, texts)
    assert (values, extras) == (expected[0], expected[2])
    assert metrics == pytest.approx(expected[1], abs=1e-12)
    assert len(set(values)) > 3 and 0 < expected[1]["reward/plan_valid"] < 1


def test_parts_of_scores_come_over_http():
    rows = build_split("test", sizes={4: 30}, seed=1, unique=True)
    texts = random_completions(rows, random.Random(0))
    reward = make_plan_reward(PlanScoring(level="step"))
    values, _, extras = scored(reward, rows, texts)
    expected = checked("plan", values, 30)
    with running(reward) as url:
        for batch_size in (64, 7):
            answers, _, columns = scored(RewardClient(url, with_columns=True, batch_size=batch_size), rows, texts)
            assert checked("plan", answers, 30) == expected and columns == extras
    assert {len(parts) for parts in expected.parts} > {3, 4} and len(set(expected.values)) > 3


def words_of(completions):
    return [[(0, 1, 0.25), (1, 1, 0.5, "tokens")] if text == "two" else 1.0 if text else None for text in completions]


def test_a_server_sends_parts_beside_the_scores_of_llama_factory():
    with running(words_of) as url:
        answer = post(url, {"model": "model", "messages": ["two", "one", ""]}).json()
        given = {"prompts": ["p"] * 3, "completions": ["two", "one", ""]}
        client = RewardClient(url, with_columns=True)
        assert client(**given) == [[[0, 1, 0.25, "characters"], [1, 1, 0.5, "tokens"]], 1.0, None]
        with pytest.raises(DataError, match="scores without parts where reward_server_columns is not set, got parts"):
            RewardClient(url)(prompts=[""] * 3, completions=given["completions"])
    assert answer["scores"] == [0.75, 1.0, None]
    assert answer["parts"] == [[[0, 1, 0.25, "characters"], [1, 1, 0.5, "tokens"]], None, None]


@pytest.mark.parametrize(
    "parts",
    [
        "text",
        [None, None],
        [[[0, 1, 0.5]]],  # not the score
        [[[0, 1]]],
        [[0, 1, 0.25]],
        [{"start": 0}],
        [[[0, 1, None]]],
        [[[0, 1, 1e308], [0, 1, 1e308]]],
    ],
    ids=repr,
)
def test_parts_that_are_none_of_a_score_are_refused(parts):
    body = json.dumps({"scores": [0.25], "parts": parts}).encode()
    with pytest.raises(DataError, match="parts"):
        read_answer(body, 1)
    assert read_answer(json.dumps({"scores": [0.25], "parts": [[[0, 1, 0.25]]]}).encode(), 1).parts == [[[0, 1, 0.25]]]


def test_plan_reward_names_what_a_request_without_columns_lacks():
    with running(make_plan_reward()) as url:
        answer = post(url, {"model": "model", "messages": ["unstack b a"]})
        assert answer.status_code == 422
        assert answer.json() == {"error": "reward plan: expected a column 'domain_pddl', got none"}
        with pytest.raises(RewardError, match=r"got 422 .*expected a column 'domain_pddl', got none"):
            RewardClient(url)(prompts=["p"], completions=["unstack b a"])


# --- refusals


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"", 400, "body: expected JSON"),
        (b"{", 400, "body: expected JSON"),
        (b"\xff", 400, "body: expected JSON"),
        (b'{"messages": [NaN]}', 400, "NaN is no JSON"),
        (b'{"messages": ["a"], "columns": {"c": [-Infinity]}}', 400, "-Infinity is no JSON"),
        (b'{"messages": ["a"], "columns": {"c": [%s]}}' % (b"9" * 5000), 400, "body: expected JSON"),
        (b"[" * 50_000, 400, "body: expected JSON"),
        (b'{"messages": ["a"], "columns": {"c": [%s1%s]}}' % (b"[" * 40, b"]" * 40), 400, "deeper than 32 levels"),
        (b'"messages"', 422, "expected a JSON object"),
        ([], 422, "expected a JSON object"),
        ({}, 422, "messages: expected a list of texts, got null"),
        ({"messages": "ab"}, 422, "messages: expected a list of texts"),
        ({"messages": ["a", 1]}, 422, "messages: expected a text at 1, got 1"),
        ({"messages": ["a", None]}, 422, "messages: expected a text at 1, got null"),
        ({"messages": [{"role": "user"}]}, 422, "messages: expected a text at 0, got an object"),
        ({"messages": ["a"], "prompts": ["a"]}, 422, "prompts and completions, or neither"),
        ({"messages": ["a"], "completions": ["a"]}, 422, "prompts and completions, or neither"),
        ({"messages": ["a"], "prompts": [], "completions": ["a"]}, 422, "column prompts: expected a list of 1"),
        ({"messages": ["a"], "prompts": ["a"], "completions": []}, 422, "column completions: expected a list of 1"),
        ({"messages": ["a"], "completion_ids": []}, 422, "column completion_ids: expected a list of 1"),
        ({"messages": ["a"], "columns": [["x"]]}, 422, "columns: expected an object of lists"),
        ({"messages": ["a"], "columns": {"c": ["x", "y"]}}, 422, "column c: expected a list of 1 values, got 2"),
        ({"messages": ["a"], "columns": {"c": "x"}}, 422, "column c: expected a list of 1 values, got str"),
        ({"messages": ["a"], "columns": {"prompts": ["x"]}}, 422, "expected names of data columns, got prompts"),
        ({"messages": ["a"], "columns": {"log_metric": ["x"]}}, 422, "expected names of data columns, got log_metric"),
    ],
)
def test_server_names_what_is_wrong_with_a_request(body, status, named, open_server):
    url, reward = open_server
    calls = reward.calls
    answer = post(url, body)
    assert answer.status_code == status
    assert named in answer.json()["error"] and len(answer.json()["error"]) < 300
    assert reward.calls == calls


@pytest.mark.parametrize("sent_as", ["declared", "chunked"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_server_refuses_a_long_body(sent_as, token):
    called = []
    body = json.dumps({"messages": ["x" * 3_000_000]}).encode()
    content = body if sent_as == "declared" else iter([body[i : i + 65536] for i in range(0, len(body), 65536)])
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {TOKEN}"} if token else {})
    with running(lambda completions, **columns: called.append(1), max_body_mib=1, token=token) as url:
        answer = httpx2.post(url, content=content, headers=headers, timeout=PATIENCE_S, **PLAIN)
        assert answer.status_code == 413 and "at most 1048576 bytes, got 3000018" in answer.json()["error"]
        fits = json.dumps({"messages": ["x" * 1_040_000]}).encode()
        assert httpx2.post(url, content=fits, headers=headers, timeout=PATIENCE_S, **PLAIN).status_code == 500
    assert called == [1]


def test_server_does_not_wait_for_ever_for_a_body(monkeypatch):
    monkeypatch.setattr(reward_server, "BODY_TIMEOUT_S", 0.2)
    with running(length) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            head = (
                "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            connection.sendall(head.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_failure_of_the_server(caplog, monkeypatch):
    with running(length) as url:
        monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
        head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S) as connection:
            connection.sendall(head.encode())
            time.sleep(0.2)  # until the server reads the body
        assert httpx2.get(url + "/health", **PLAIN).status_code == 200
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Basic {TOKEN}", f"bearer {TOKEN}", f"Bearer {TOKEN}x", TOKEN, "Bearer \xfc"]
)
def test_server_with_a_token_answers_nobody_without_it(given, token_server):
    url, reward = token_server
    calls = reward.calls
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    answer = post(url, {"messages": ["a"]}, headers)
    assert answer.status_code == 401 and "bearer token" in answer.json()["error"] and TOKEN not in answer.text
    assert answer.headers["www-authenticate"] == "Bearer"
    assert httpx2.get(url + "/health", **PLAIN).json() == {"status": "ok", "reward": "Counting"}
    assert reward.calls == calls


def test_server_with_a_token_answers_a_client_that_has_it(monkeypatch, token_server):
    url, _ = token_server
    with pytest.raises(RewardError, match="got 401 "):
        RewardClient(url)(prompts=["a"], completions=["b"])
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert RewardClient(url)(prompts=["a"], completions=["b"]) == [2.0]
    elsewhere = {"Host": "val.example:8000", "Authorization": f"Bearer {TOKEN}"}
    assert post(url, {"messages": ["a"]}, elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("10.0.0.1", 403),
        ("localhost.evil.example", 403),
        ("a{b.evil.example", 403),
        ('a"b.evil.example', 403),
        ("evil.example:99999", 403),
        ("[::1", 403),
        ("localhost", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:9", 200),
    ],
)
def test_server_without_a_token_answers_under_a_loopback_name_only(host, status, open_server):
    assert post(open_server[0], {"messages": ["a"]}, {"Host": host}).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_server_refuses_what_a_web_page_could_send(kind, open_server):
    url, _ = open_server
    answer = post(url, {"messages": ["a"]}, {"Content-Type": kind})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]
    assert post(url, {"messages": ["a"]}, {"Content-Type": "application/json; charset=utf-8"}).status_code == 200


def test_server_answers_unknown_paths_and_methods_in_json(open_server):
    url, _ = open_server
    for path in ("/nowhere", "/score/"):
        assert post(url + path, {}).status_code == 404 and "error" in post(url + path, {}).json()
    answer = httpx2.get(url + "/score", **PLAIN)
    assert answer.status_code == 405 and "error" in answer.json()


# --- functions that fail


def broken(completions, **columns):
    raise RuntimeError("disk full\x1b[31m; password=hunter2hunter2")


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        (broken, "reward broken: RuntimeError: disk full"),
        (lambda completions, **columns: [1.0], "expected 2 values, got 1"),
        (lambda completions, **columns: None, "expected 2 values, got NoneType"),
        (lambda completions, **columns: [1.0, float("nan")], "expected a finite number or None for row 1, got nan"),
        (lambda completions, **columns: [1.0, "high"], "expected a finite number or None for row 1, got 'high'"),
        (
            lambda completions, log_extra: log_extra("e", [1]) or [1.0, 2.0],
            "expected 2 values, one for each completion",
        ),
        (lambda completions, log_metric: log_metric("m", "x") or [1.0, 2.0], "expected a number for log_metric 'm'"),
    ],
)
def test_server_says_how_a_function_failed_without_its_traceback(reward, named, caplog):
    with running(reward) as url:
        answer = post(url, {"messages": ["a", "b"]})
        assert answer.status_code == 500 and named in answer.json()["error"]
        assert "Traceback" not in answer.text and "test_reward_server" not in answer.text
        assert "hunter2" not in answer.text
        assert httpx2.get(url + "/health", **PLAIN).status_code == 200
    (logged,) = caplog.messages  # for the operator
    assert logged.startswith("Traceback") and "\x1b" not in logged
    assert "disk full" not in logged or ("\\x1b[31m" in logged and "password=<redacted>" in logged)


# --- order


class Gate:
    """A reward function that waits until it is let through."""

    def __init__(self):
        self.inside, self.most, self.calls = 0, 0, []
        self.opened, self.entered, self._lock = threading.Event(), threading.Semaphore(0), threading.Lock()

    def __call__(self, completions, **columns):
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.calls.append(completions[0])
        self.entered.release()
        assert self.opened.wait(PATIENCE_S)
        with self._lock:
            self.inside -= 1
        return [1.0] * len(completions)


@pytest.mark.parametrize("workers", [1, 2])
def test_server_answers_health_while_as_many_rewards_as_allowed_are_computed(workers):
    gate = Gate()
    with running(gate, workers=workers) as url, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, url, {"messages": [str(n)]}) for n in range(4)]
        for _ in range(workers):
            assert gate.entered.acquire(timeout=PATIENCE_S)
        health = httpx2.get(url + "/health", timeout=PATIENCE_S, **PLAIN)
        assert health.json() == {"status": "ok", "reward": "Gate"}
        assert not gate.entered.acquire(timeout=0.3)  # nobody else is let in
        gate.opened.set()
        assert [answer.result().json()["scores"] for answer in answers] == [[1.0]] * 4
    assert gate.most == workers and sorted(gate.calls) == ["0", "1", "2", "3"]


def test_server_tells_a_client_to_come_again_when_too_many_wait():
    gate = Gate()
    with running(gate, max_waiting=0) as url, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, url, {"messages": ["first"]})
        assert gate.entered.acquire(timeout=PATIENCE_S)
        answer = post(url, {"messages": ["second"]})
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1" and "busy" in answer.json()["error"]
        gate.opened.set()
        assert first.result().status_code == 200
        assert post(url, {"messages": ["third"]}).status_code == 200  # there is room again
    assert gate.calls == ["first", "third"]


def test_a_client_that_leaves_while_it_waits_gives_its_place_to_others(monkeypatch):
    monkeypatch.setattr(reward_server, "LOOK_AGAIN_S", 0.05)
    gate = Gate()
    with running(gate, max_waiting=1) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, url, {"messages": ["first"]})
        assert gate.entered.acquire(timeout=PATIENCE_S)
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json={"messages": ["gone"]}, timeout=0.3, **PLAIN)
        time.sleep(1.0)
        second = pool.submit(post, url, {"messages": ["second"]})
        with pytest.raises(TimeoutError):  # it waits, and is not refused
            second.result(timeout=0.5)
        gate.opened.set()
        assert first.result().status_code == second.result().status_code == 200
    assert gate.calls == ["first", "second"]


def connected(url):
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)


def answer_to(connection, request):
    connection.sendall(request)
    received = b""
    while not received.endswith(b"}"):
        received += connection.recv(65536)
    return received


def test_server_holds_no_more_bodies_than_it_says():
    """Its memory while thirty clients have sent all but the end of theirs; docs/reward_server.md has the bound."""
    size, places, clients = 2**20, 1 + 3, 30
    buffers = clients * 384 * 2**10
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    body = b'{"messages": ["' + b"x" * (size - 18)
    with running(length, max_body_mib=1, max_waiting=places - 1) as url, contextlib.ExitStack() as stack:
        post(url, {"messages": ["warm"]})
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        connections = [stack.enter_context(connected(url)) for _ in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda connection: connection.sendall(head.encode() + body), connections))
        time.sleep(0.5)  # what has arrived is read
        held, peak = tracemalloc.get_traced_memory()
        assert held < places * size + buffers, f"{held / size:.1f} bodies"
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda connection: connection.sendall(b'"]}'), connections))
        answers = [answer_to(connection, b"").split(b" ")[1] for connection in connections]
        _, peak = tracemalloc.get_traced_memory()
    assert answers.count(b"200") == places and answers.count(b"503") == clients - places
    assert peak < (places + 4) * size + buffers, f"{peak / size:.1f} bodies"


def test_server_closes_connections_that_do_not_get_through_their_headers(monkeypatch):
    monkeypatch.setattr(reward_server, "HEADER_TIMEOUT_S", 0.3)
    with running(length) as url, connected(url) as silent, connected(url) as slow, connected(url) as lively:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: local")
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert answer_to(lively, request).startswith(b"HTTP/1.1 200 ")
        assert silent.recv(65536) == slow.recv(65536) == b""
        assert answer_to(lively, request).startswith(b"HTTP/1.1 200 ")  # kept alive
        lively.sendall(request[:10])
        assert lively.recv(65536) == b""


def test_server_has_a_limit_of_connections(monkeypatch):
    monkeypatch.setattr(reward_server, "MAX_CONNECTIONS", 3)
    with running(length) as url, contextlib.ExitStack() as stack:
        first = [stack.enter_context(connected(url)) for _ in range(3)]
        with pytest.raises(httpx2.TransportError):
            post(url, {"messages": ["x"]})
        first[0].close()
        deadline = time.monotonic() + PATIENCE_S
        while True:  # as soon as the server has noticed
            try:
                assert post(url, {"messages": ["x"]}).status_code == 200
                break
            except httpx2.TransportError:
                assert time.monotonic() < deadline


def test_server_closes_connections_whose_client_does_not_read(monkeypatch):
    monkeypatch.setattr(reward_server, "BODY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(reward_server, "MAX_CONNECTIONS", 1)

    def talkative(completions, log_extra):
        log_extra("long", ["x" * 2**25])
        return [1.0]

    with running(talkative) as url, connected(url) as silent:
        body = b'{"messages": ["x"]}'
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        silent.sendall(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        deadline = time.monotonic() + PATIENCE_S
        while True:  # as soon as the server has given up
            try:
                assert httpx2.get(url + "/health", timeout=PATIENCE_S, **PLAIN).status_code == 200
                break
            except httpx2.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_server_refuses_what_is_no_list_of_numbers():
    for values in ({"a": 1.0}, {1.0}, [1e39]):
        with running(lambda completions, values=values: values) as url:
            answer = post(url, {"messages": ["x"]})
            assert answer.status_code == 500 and "expected" in answer.json()["error"]


def test_server_does_not_score_for_a_client_that_went_away():
    gate = Gate()
    with running(gate) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, url, {"messages": ["first"]})
        assert gate.entered.acquire(timeout=PATIENCE_S)
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(url, json={"messages": ["gone"]}, timeout=0.6, **PLAIN)
        last = pool.submit(post, url, {"messages": ["last"]})
        gate.opened.set()
        assert first.result().status_code == last.result().status_code == 200
    assert "gone" not in gate.calls and "last" in gate.calls


# --- the command


def config_of(*flags):
    return parse_cli(RewardServerConfig, "reward_server", list(flags))


def test_serve_refuses_other_machines_without_a_token(monkeypatch):
    for host in ("192.0.2.1", "somewhere.invalid", "0.0.0.0", "::"):
        with pytest.raises(ConfigError, match=f"host: expected a loopback address without {TOKEN_VARIABLE} set, got"):
            serve(length, config_of("--host", host, "--port", "0"))
    monkeypatch.setenv(TOKEN_VARIABLE, "two words")
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}: expected a token"):
        serve(length, config_of("--port", "0"))
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with pytest.raises(ConfigError, match="host: expected a loopback address"):
        serve(length, config_of("--host", "0.0.0.0", "--port", "0"))


def test_serve_names_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"expected a free address, got 127.0.0.1:{port}"):
            serve(length, config_of("--port", str(port)))


@pytest.mark.parametrize("package", ["starlette.applications", "uvicorn"])
def test_serve_names_the_extra_that_is_missing(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"expected {package} to be installed: pip install 'jaxppo\[server\]'"):
        serve(length, config_of("--port", "0"))


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [
        ("--port", "70000", "port: expected a port"),
        ("--workers", "0", "workers: expected a number above 0"),
        ("--max_waiting", "-1", "max_waiting: expected an integer of at least 0"),
        ("--max_body_mib", "nan", "max_body_mib: expected a finite number above 0"),
    ],
)
def test_config_names_a_bad_value(flag, value, named):
    with pytest.raises(ConfigError, match=named):
        config_of(flag, value)


def test_config_takes_one_function():
    assert make_function(config_of("--reward_funcs", "plan")).__name__ == "plan"
    with pytest.raises(ConfigError, match="reward_funcs: expected one function"):
        config_of("--reward_funcs", "plan", "a:b")


def test_the_validator_is_tried_before_anybody_asks(tmp_path, monkeypatch):
    broken = tmp_path / "Validate"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(broken))
    with pytest.raises(ValidatorError, match="validator val: expected"):
        make_function(config_of("--reward_funcs", "plan", "--validator", "val"))


def test_config_has_no_place_for_a_token():
    with pytest.raises(ConfigError, match="token"):
        replace(RewardServerConfig(), token=TOKEN)


SLOW_REWARD = """
import time

def slow(completions, **columns):
    print("working", flush=True)
    time.sleep(float(completions[0]))
    return [1.0]
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_server_runs_is_not_lost(signum):
    server = SimpleNamespace(should_exit=False)
    earlier = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        reward_server._stop_by_signal(server)
        signal.raise_signal(signum)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    assert server.should_exit


class Command:
    """The command in a process of its own, in a folder with the module `rewards_here`."""

    def __init__(self, folder, *flags, code=None, token=""):
        (folder / "rewards_here.py").write_text(SLOW_REWARD)
        run = ["-m", "jaxppo.reward_server", "--port", "0", *flags] if code is None else ["-c", code]
        environment = os.environ | {"PYTHONPATH": str(ROOT), TOKEN_VARIABLE: token}
        self.process = subprocess.Popen(
            [sys.executable, *run],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[-1] if self.line else ""

    def wait_until_working(self):
        assert self.process.stdout.readline() == "working\n"

    def stop(self, signum):
        self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_command_serves_the_plan_reward_and_finishes_on_sigterm(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    rows = build_split("test", sizes={4: 6}, seed=1, unique=True)
    texts = random_completions(rows, random.Random(1))
    with Command(tmp_path, "--reward_funcs", "plan", "--audit_rate", "0", token=TOKEN) as command:
        assert re.fullmatch(r"reward plan on http://127\.0\.0\.1:\d+\n", command.line)
        assert (
            scored(RewardClient(command.url, with_columns=True), rows, texts)[0]
            == scored(make_plan_reward(), rows, texts)[0]
        )
        assert post(command.url, {"messages": ["a"]}).status_code == 401
        assert command.stop(signal.SIGTERM) == (0, "", "")


@pytest.mark.full
def test_command_finishes_its_work_on_ctrl_c(tmp_path):
    with Command(tmp_path, "--reward_funcs", "rewards_here:slow") as command, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, command.url, {"messages": ["0.5"]})
        command.wait_until_working()
        assert command.stop(signal.SIGINT) == (0, "", "")
        assert answer.result().json()["scores"] == [1.0]


@pytest.mark.full
def test_serve_ends_although_a_function_hangs_and_its_client_is_told(tmp_path):
    code = """
from jaxppo import reward_server
from jaxppo.config import RewardServerConfig
from rewards_here import slow
reward_server.STOP_TIMEOUT_S = 1
reward_server.serve(slow, RewardServerConfig(port=0))
"""
    with Command(tmp_path, code=code) as command, ThreadPoolExecutor(1) as pool:
        client = RewardClient(command.url, retries=0, timeout_s=PATIENCE_S)
        answer = pool.submit(client, prompts=[""], completions=["1000"])
        command.wait_until_working()
        status, _, _ = command.stop(signal.SIGTERM)
        assert status == 0
        with pytest.raises(RewardError, match="reward server"):
            answer.result()


@pytest.mark.full
def test_client_notices_a_server_that_is_killed(tmp_path):
    code = """
from jaxppo import reward_server
from jaxppo.config import RewardServerConfig
from rewards_here import slow
reward_server.serve(slow, RewardServerConfig(port=0))
"""
    with Command(tmp_path, code=code) as command, ThreadPoolExecutor(1) as pool:
        client = RewardClient(command.url, retries=1, backoff_s=0.05, timeout_s=PATIENCE_S)
        answer = pool.submit(client, prompts=[""], completions=["1000"])
        command.wait_until_working()
        command.stop(signal.SIGKILL)
        with pytest.raises(RewardError, match=r"expected an answer, got ConnectError .* \(2 attempts\)"):
            answer.result()


# --- the page


def blocks(language):
    page = (ROOT / "docs" / "reward_server.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_examples_of_the_page_are_what_the_server_says_and_the_client_does():
    server_code, client_code = blocks("python")
    names = {}
    exec(server_code, names)
    examples = [json.loads(block) for block in blocks("json")]
    with running(names["characters"]) as url:
        assert len(examples) == 6
        for request, expected in zip(examples[::2], examples[1::2], strict=True):
            answer = post(url, request).json()
            assert {name: value for name, value in answer.items() if value or name in expected} == expected
        assert "http://127.0.0.1:8000" in client_code
        exec(client_code.replace("http://127.0.0.1:8000", url), {})


def test_flags_of_the_page_are_flags(caplog):
    caplog.set_level(logging.ERROR)
    commands = [line for block in blocks("bash") for line in block.splitlines() if "jaxppo.reward_server" in line]
    assert len(commands) == 2
    for command in commands:
        assert config_of(*command.split("jaxppo.reward_server")[1].split()).port == 8000
