"""The reward server: what it answers, whom, in which order; and that a score over HTTP is the score in process."""

import contextlib
import json
import logging
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

from jaxppo import reward_server
from jaxppo.config import RewardServerConfig
from jaxppo.config.sources import parse_cli, replace
from jaxppo.errors import ConfigError, ValidatorError
from jaxppo.planning.datasets.rows import build_split
from jaxppo.reward_functions import http_client
from jaxppo.reward_functions.http_client import RewardClient, RewardError
from jaxppo.reward_functions.http_contract import TOKEN_VARIABLE
from jaxppo.reward_functions.plan import make_plan_reward
from jaxppo.reward_server import make_function, serve
from jaxppo.rewards import Reports
from tests.commands import environment
from tests.pages import blocks
from tests.plan_texts import random_completions
from tests.reward_servers import DIRECT, PATIENCE_S, TOKEN, connected, length, port_of, post, running


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


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


def health(url):
    return httpx2.get(url + "/health", timeout=PATIENCE_S, **DIRECT)


def test_server_answers_llama_factorys_request():
    def with_prompts(completions, prompts, log_extra):
        log_extra("before", prompts)
        return length(completions)

    with running(with_prompts) as url:
        for path in ("", "/", "/score"):
            answer = post(url + path, {"model": "model", "messages": ["ab", "", "ünï🙂"]})
            assert (answer.status_code, answer.json()["scores"]) == (200, [2.0, 0.0, 4.0])
            assert answer.json()["extras"] == {"before": ["", "", ""]}
            assert answer.headers["content-type"] == "application/json"
        assert post(url, {"messages": []}).json() == {"scores": []}


def test_server_gives_and_takes_what_a_run_does():
    async def graded(prompts, completions, completion_ids, *, grade, log_metric, log_extra, weight=2.0):
        log_metric("reward/grade", float(np.mean(grade)))
        log_metric("reward/odd", float("nan"))
        log_extra("ids", completion_ids)
        log_extra("texts", [list(pair) for pair in zip(prompts, completions, strict=True)])
        log_extra("odd", iter([float("nan"), {1}]))
        return [np.float32(grade[0] * weight), None]

    body = {
        "messages": ["pa", "qb"],
        "prompts": ["p", "q"],
        "completions": ["a", "b"],
        "completion_ids": [[1, 2], [3]],
        "columns": {"grade": [0.25, 0.5], "unused": [{"x": [None]}, 1]},
    }
    with running(graded) as url:
        answer = post(url, body).json()
        del body["completion_ids"]
        assert post(url, body).json()["extras"]["ids"] == [[], []]
    assert answer == {
        "scores": [0.5, None],
        "metrics": {"reward/grade": 0.375, "reward/odd": None},
        "extras": {"ids": [[1, 2], [3]], "texts": [["p", "a"], ["q", "b"]], "odd": [None, "{1}"]},
    }


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
    own_metrics = {name: value for name, value in metrics.items() if "reward_server/" not in name}
    return Reports("plan", len(rows)).with_scores(values), own_metrics, extras


def test_plan_reward_over_http_is_the_plan_reward_and_names_what_a_request_lacks(monkeypatch):
    rows = build_split("test", sizes={4: 30}, seed=1, unique=True)
    texts = random_completions(rows, random.Random(0))
    reward = make_plan_reward()
    scores, metrics, extras = scored(reward, rows, texts)
    with running(reward) as url:
        assert scored(RewardClient(url), rows, texts) == (scores, metrics, extras)
        # In several requests, whose means are weighted by their rows.
        monkeypatch.setattr(http_client, "BATCH_SIZE", 7)
        cut_scores, cut_metrics, cut_extras = scored(RewardClient(url), rows, texts)
    assert (cut_scores, cut_extras) == (scores, extras)
    assert cut_metrics["reward/mean"] == pytest.approx(metrics["reward/mean"], abs=1e-12)
    assert len(set(scores.values)) > 3 and 0 < metrics["reward/plan_valid"] < 1
    with running(make_plan_reward()) as url:
        answer = post(url, {"model": "model", "messages": ["unstack b a"]})
        assert answer.status_code == 422 and "'domain_pddl'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"", 400, "body"),
        (b'{"messages": [NaN]}', 422, "NaN"),
        (b"[" * 50_000, 400, "body"),
        ([], 422, "JSON object"),
        ({}, 422, "messages"),
        ({"messages": ["a", 1]}, 422, "messages.* 1, "),
        ({"messages": ["a"], "prompts": ["a"]}, 422, "prompts and completions"),
        ({"messages": ["a"], "prompts": [], "completions": ["a"]}, 422, "column .prompts"),
        ({"messages": ["a"], "columns": [["x"]]}, 422, "columns"),
        ({"messages": ["a"], "columns": {"c": ["x", "y"]}}, 422, "column .c"),
        ({"messages": ["a"], "columns": {"log_metric": ["x"]}}, 422, "log_metric"),
    ],
)
def test_server_names_what_is_wrong_with_a_request(body, status, named, open_server):
    url, reward = open_server
    calls = reward.calls
    answer = post(url, body)
    assert answer.status_code == status
    assert re.search(named, answer.json()["error"]) and len(answer.json()["error"]) < 300
    assert reward.calls == calls


@pytest.mark.parametrize(("sent_as", "token"), [("declared", None), ("chunked", TOKEN)])
def test_server_refuses_a_long_body(sent_as, token, monkeypatch):
    monkeypatch.setattr(reward_server, "MAX_BODY_BYTES", 2**20)
    reward = Counting()
    body = json.dumps({"messages": ["x" * 3_000_000]}).encode()
    content = body if sent_as == "declared" else iter([body[i : i + 65536] for i in range(0, len(body), 65536)])
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    with running(reward, token=token) as url:
        answer = httpx2.post(url, content=content, headers=headers, timeout=PATIENCE_S, **DIRECT)
        assert answer.status_code == 413
        assert "1048576" in answer.json()["error"]
        assert post(url, {"messages": ["x" * 1_040_000]}, headers).status_code == 200
    assert reward.calls == 1


def head_of(size):
    """The beginning of a request with a body of so many bytes."""
    lines = ["POST / HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {size}", "", ""]
    return "\r\n".join(lines).encode()


def test_server_does_not_wait_for_ever_for_a_body_nor_fail_where_its_client_leaves(caplog, monkeypatch):
    monkeypatch.setattr(reward_server, "CLIENT_TIMEOUT_S", 1)
    with running(length) as url, connected(url) as waiting:
        monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
        waiting.sendall(head_of(100) + b"{")
        with connected(url) as leaving:
            leaving.sendall(head_of(100) + b"{")
            time.sleep(0.2)  # until the server reads the body
        assert waiting.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert health(url).status_code == 200
    assert [record.getMessage() for record in caplog.records] == []


def test_server_with_a_token_answers_nobody_without_it():
    reward = Counting()
    with running(reward, token=TOKEN) as url:
        for given in (None, "Bearer wrong", f"Bearer {TOKEN}x", TOKEN, "Bearer \xfc"):
            headers = {} if given is None else {"Authorization": given.encode("latin-1")}
            answer = post(url, {"messages": ["a"]}, headers)
            assert answer.status_code == 401 and TOKEN not in answer.text
            assert answer.headers["www-authenticate"] == "Bearer"
        assert health(url).json() == {"status": "ok", "reward": "Counting"}
        assert reward.calls == 0
        elsewhere = {"Host": "val.example:8000", "Authorization": f"Bearer {TOKEN}"}
        assert post(url, {"messages": ["a"]}, elsewhere).status_code == 200


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "localhost.evil.example", 403),
        ("Host", "a{b.evil.example", 403),  # starlette would put the server's own for one that it cannot read
        ("Host", "[::1", 403),
        ("Host", "127.0.0.1:9", 200),
        ("Host", "[::1]:9", 200),
        ("Content-Type", "text/plain", 415),
        ("Content-Type", "", 415),
        ("Content-Type", "application/json; charset=utf-8", 200),
    ],
)
def test_server_without_a_token_refuses_what_a_web_page_could_send(header, value, status, open_server):
    assert post(open_server[0], {"messages": ["a"]}, {header: value}).status_code == status


def test_server_answers_unknown_paths_and_methods_in_json(open_server):
    url, _ = open_server
    for path in ("/nowhere", "/score/"):
        answer = post(url + path, {})
        assert answer.status_code == 404 and "error" in answer.json()
    answer = httpx2.get(url + "/score", **DIRECT)
    assert answer.status_code == 405 and "error" in answer.json()


def broken(completions, **columns):
    raise RuntimeError("disk full\x1b[31m; password=hunter2hunter2")


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        (broken, "broken: RuntimeError: disk full"),
        (lambda completions: [1.0, float("nan")], "row 1, got nan"),
    ],
)
def test_server_says_how_a_function_failed_without_its_traceback(reward, named, caplog):
    with running(reward) as url:
        answer = post(url, {"messages": ["a", "b"]})
        assert answer.status_code == 500 and named in answer.json()["error"]
        assert "Traceback" not in answer.text and "test_reward_server" not in answer.text
        assert "hunter2" not in answer.text
        assert health(url).status_code == 200
    (logged,) = caplog.messages  # for the operator
    assert logged.startswith("Traceback") and "\x1b" not in logged
    assert "disk full" not in logged or ("\\x1b[31m" in logged and "password=<redacted>" in logged)


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
        assert health(url).json() == {"status": "ok", "reward": "Gate"}
        assert not gate.entered.acquire(timeout=0.3)  # nobody else is let in
        gate.opened.set()
        assert [answer.result().json()["scores"] for answer in answers] == [[1.0]] * 4
    assert gate.most == workers and sorted(gate.calls) == ["0", "1", "2", "3"]


def test_a_client_that_leaves_is_not_scored_and_gives_its_place_to_others(monkeypatch):
    monkeypatch.setattr(reward_server, "MAX_WAITING", 1)
    gate = Gate()
    with running(gate) as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, url, {"messages": ["first"]})
        assert gate.entered.acquire(timeout=PATIENCE_S)
        with pytest.raises(httpx2.ReadTimeout):
            post(url, {"messages": ["gone"]}, timeout=0.3)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            second = pool.submit(post, url, {"messages": ["second"]})
            try:
                assert second.result(timeout=0.3).status_code == 503  # the server has not noticed yet
                assert time.monotonic() < deadline
            except TimeoutError:  # it waits, and is not refused
                break
        gate.opened.set()
        assert first.result().status_code == second.result().status_code == 200
    assert gate.calls == ["first", "second"]


def answer_to(connection, request):
    connection.sendall(request)
    received = b""
    while not received.endswith(b"}"):
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def test_server_holds_no_more_bodies_than_it_says(monkeypatch):
    """Its memory while twenty clients have sent all but the end of theirs; docs/reward_server.md has the bound."""
    size, places, clients = 2**20, 1 + 3, 20
    monkeypatch.setattr(reward_server, "MAX_BODY_BYTES", size)
    monkeypatch.setattr(reward_server, "MAX_WAITING", places - 1)
    buffers = clients * 384 * 2**10
    body = b'{"messages": ["' + b"x" * (size - 18)
    with running(length) as url, contextlib.ExitStack() as stack:
        post(url, {"messages": ["warm"]})
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        connections = [stack.enter_context(connected(url)) for _ in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda connection: connection.sendall(head_of(size) + body), connections))
        time.sleep(0.5)  # what has arrived is read
        held, _ = tracemalloc.get_traced_memory()
        assert held < places * size + buffers, f"{held / size:.1f} bodies"
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda connection: connection.sendall(b'"]}'), connections))
        answers = [answer_to(connection, b"") for connection in connections]
        _, peak = tracemalloc.get_traced_memory()
    statuses = [answer.split(b" ")[1] for answer in answers]
    assert statuses.count(b"200") == places and statuses.count(b"503") == clients - places
    assert sum(b"retry-after: 1\r\n" in answer for answer in answers) == clients - places
    assert peak < (places + 4) * size + buffers, f"{peak / size:.1f} bodies"


def test_server_closes_connections_whose_clients_do_not_go_on(monkeypatch):
    monkeypatch.setattr(reward_server, "CLIENT_TIMEOUT_S", 1)
    monkeypatch.setattr(reward_server, "HEADER_TIMEOUT_S", 1)

    def talkative(completions, log_extra):
        log_extra("long", ["x" * 2**24])  # more than the buffers of both sides hold
        return [1.0]

    with running(talkative) as url, contextlib.ExitStack() as stack:
        silent, slow, lively, deaf = (stack.enter_context(connected(url)) for _ in range(4))
        body = b'{"messages": ["x"]}'
        deaf.sendall(head_of(len(body)) + body)
        slow.sendall(b"POST / HTTP/1.1\r\nHost: local")
        request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(2):  # it is kept alive
            assert answer_to(lively, request).startswith(b"HTTP/1.1 200 ")
        lively.sendall(request[:10])
        assert [connection.recv(65536) for connection in (silent, slow, lively)] == [b""] * 3
        received = 0
        while part := deaf.recv(2**20):
            received += len(part)
        assert received < 2**24


def test_server_has_a_limit_of_connections(monkeypatch):
    monkeypatch.setattr(reward_server, "MAX_CONNECTIONS", 3)
    with running(length) as url, contextlib.ExitStack() as stack:
        first, _ = [stack.enter_context(connected(url)) for _ in range(2)]
        assert health(url).status_code == 503
        first.close()
        deadline = time.monotonic() + PATIENCE_S
        while health(url).status_code == 503:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def config_of(*flags):
    return parse_cli(RewardServerConfig, "reward_server", list(flags))


def test_serve_refuses_other_machines_without_a_token_and_an_address_in_use(monkeypatch):
    for host in ("192.0.2.1", "somewhere.invalid", "0.0.0.0", "::"):
        with pytest.raises(ConfigError, match=f"host: .*{TOKEN_VARIABLE}"):
            serve(length, config_of("--host", host, "--port", "0"))
    for token, named in (("two words", TOKEN_VARIABLE), ("", "host")):
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        with pytest.raises(ConfigError, match=named):
            serve(length, config_of("--host", "0.0.0.0", "--port", "0"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            serve(length, config_of("--port", str(port)))


@pytest.mark.parametrize("package", ["starlette.applications", "uvicorn"])
def test_serve_names_the_extra_that_is_missing(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package}.*pip install 'jaxppo\[server\]'"):
        serve(length, config_of("--port", "0"))


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("port", ["70000"]),
        ("reward_funcs", ["plan", "a:b"]),
    ],
)
def test_config_names_a_bad_value_and_has_no_place_for_a_token(setting, values):
    with pytest.raises(ConfigError, match=f"^{setting}: "):
        config_of(f"--{setting}", *values)
    with pytest.raises(ConfigError, match="token"):
        replace(RewardServerConfig(), token=TOKEN)


def test_the_validator_is_tried_before_anybody_asks(tmp_path, monkeypatch):
    assert make_function(config_of("--reward_funcs", "plan")).__name__ == "plan"
    broken_val = tmp_path / "Validate"
    broken_val.write_text("#!/bin/sh\nexit 1\n")
    broken_val.chmod(0o755)
    monkeypatch.setenv("JAXPPO_VAL", str(broken_val))
    with pytest.raises(ValidatorError, match="validator val"):
        make_function(config_of("--reward_funcs", "plan", "--validator", "val"))


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


SLOW_REWARD = """
import time

def slow(completions, **columns):
    print("working", flush=True)
    time.sleep(float(completions[0]))
    return [1.0]
"""


class Command:
    """The command in a process of its own, in a folder with the module `rewards_here`."""

    def __init__(self, folder, *words, token=""):
        (folder / "rewards_here.py").write_text(SLOW_REWARD)
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment() | {TOKEN_VARIABLE: token},
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


SERVER = ("-m", "jaxppo.reward_server", "--port", "0", "--reward_funcs")


def test_command_serves_the_plan_reward_and_finishes_on_sigterm(tmp_path, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    rows = build_split("test", sizes={4: 6}, seed=1, unique=True)
    texts = random_completions(rows, random.Random(1))
    with Command(tmp_path, *SERVER, "plan", token=TOKEN) as command:
        assert re.fullmatch(r"reward plan on http://127\.0\.0\.1:\d+\n", command.line)
        served = RewardClient(command.url)
        assert scored(served, rows, texts)[0] == scored(make_plan_reward(), rows, texts)[0]
        assert post(command.url, {"messages": ["a"]}).status_code == 401
        assert command.stop(signal.SIGTERM) == (0, "", "")


@pytest.mark.full
def test_command_finishes_its_work_on_ctrl_c(tmp_path):
    with Command(tmp_path, *SERVER, "rewards_here:slow") as command, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, command.url, {"messages": ["0.5"]})
        command.wait_until_working()
        assert command.stop(signal.SIGINT) == (0, "", "")
        assert answer.result().json()["scores"] == [1.0]


@pytest.mark.full
def test_serve_ends_although_a_function_hangs_and_its_client_notices(tmp_path):
    code = """
from jaxppo import reward_server
from jaxppo.config import RewardServerConfig
from rewards_here import slow
reward_server.STOP_TIMEOUT_S = 1
reward_server.serve(slow, RewardServerConfig(port=0))
"""
    with Command(tmp_path, "-c", code) as command, ThreadPoolExecutor(1) as pool:
        client = RewardClient(command.url, retries=0, timeout_s=PATIENCE_S)
        answer = pool.submit(client, prompts=[""], completions=["1000"])
        command.wait_until_working()
        status, _, _ = command.stop(signal.SIGTERM)
        assert status == 0
        with pytest.raises(RewardError, match=str(port_of(command.url))):
            answer.result()


def test_examples_of_the_page_are_what_the_server_says_and_the_client_does():
    page = blocks("docs/reward_server.md")
    server_code, client_code = (block.text for block in page if block.language == "python")
    names = {}
    exec(server_code, names)
    examples = [json.loads(block.text) for block in page if block.language == "json"]
    with running(names["characters"]) as url:
        assert len(examples) == 6
        for request, expected in zip(examples[::2], examples[1::2], strict=True):
            answer = post(url, request).json()
            assert {name: value for name, value in answer.items() if value or name in expected} == expected
        assert "http://127.0.0.1:8000" in client_code
        exec(client_code.replace("http://127.0.0.1:8000", url), {})
