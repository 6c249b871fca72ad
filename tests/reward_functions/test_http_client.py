"""The client of reward servers, against servers that fail in every way a server can; all on loopback."""

import asyncio
import base64
import contextlib
import json
import logging
import random
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import numpy as np
import pytest

from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.reward_functions import http_client
from jaxppo.reward_functions.http_client import RewardClient, RewardError
from jaxppo.reward_functions.http_contract import TOKEN_VARIABLE, Answer, merge, messages, read_answer

TOKEN = "tk-3x4mpl3.of/a+token=="
PATIENCE_S = 20.0  # far above what a bounded wait takes here, far below what an unbounded one would


@pytest.fixture(autouse=True)
def _no_token(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


class Script:
    """A server on a thread, whose answers are given by a function of the requests so far."""

    def __init__(self, answer):
        self.requests, self._lock = [], threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with script._lock:
                    script.requests.append((dict(self.headers), self.path, body))
                    number = len(script.requests)
                status, content, *headers = answer(number, body)
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **(headers[0] if headers else {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/score"

    def bodies(self):
        return [body for _, _, body in self.requests]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def by_length(number, body):
    return 200, {"scores": [len(text) for text in body["messages"]]}


def always(status, content, headers=None):
    return lambda number, body: (status, content, headers or {})


@contextlib.contextmanager
def raw_server(serve):
    """A server of bytes: `serve(connection)` is called for every connection, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=guarded, args=(connection,), daemon=True).start()

        def guarded(connection):
            with connection, contextlib.suppress(OSError):  # the client hangs up, as it should
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def client_of(url, **options):
    return RewardClient(url, **{"backoff_s": 0.01, "timeout_s": 10.0} | options)


def ask(client, completions=("a", "bb"), **others):
    return client(prompts=["p"] * len(completions), completions=list(completions), **others)


# --- the contract


def test_client_speaks_llama_factorys_contract_and_nothing_else():
    with Script(always(200, {"scores": [0.5, -1]})) as server:
        scores = client_of(server.url)(
            prompts=["Q: ", "R: "], completions=["x", "y"], completion_ids=[[1], [2]], answer=[object(), object()]
        )
    (headers, path, body), *more = server.requests
    assert scores == [0.5, -1.0] and not more
    assert body == {"model": "model", "messages": ["Q: x", "R: y"]}
    assert path == "/score" and headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers


def test_messages_are_prompts_with_their_completions():
    assert messages(["a", "b"], ["1", "2"]) == ["a1", "b2"]
    with pytest.raises(DataError, match="a prompt per completion, got 1 and 2"):
        messages(["a"], ["1", "2"])


def test_client_cuts_a_large_call_into_requests_and_keeps_the_order():
    completions = ["x" * (n * 7 % 23) for n in range(101)]
    with Script(by_length) as server:
        scores = ask(client_of(server.url, batch_size=16, workers=3), completions)
    assert scores == [1 + len(text) for text in completions]
    assert sorted(len(body["messages"]) for body in server.bodies()) == [5, *[16] * 6]


def test_client_sends_several_requests_at_a_time_but_no_more_than_asked_for():
    inside, most, together = 0, 0, threading.Barrier(3)
    lock = threading.Lock()

    def meet(number, body):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        together.wait(PATIENCE_S)  # breaks unless three requests are here at once
        with lock:
            inside -= 1
        return by_length(number, body)

    with Script(meet) as server:
        ask(client_of(server.url, batch_size=1, workers=3), ["x"] * 9)
    assert most == 3 and len(server.requests) == 9


def test_client_asks_nothing_about_nothing():
    with Script(by_length) as server:
        metrics = {}
        assert client_of(server.url)(prompts=[], completions=[], log_metric=metrics.__setitem__) == []
    assert server.requests == []
    assert metrics == {"reward_server/requests": 0.0, "reward_server/retries": 0.0, "reward_server/failures": 0.0}


def test_client_sends_columns_and_hands_on_what_the_server_reports():
    answer = {
        "scores": [1.0, None],
        "metrics": {"reward/mean": 0.1, "reward/odd": None},
        "extras": {"verdict": ["valid", "syntax"]},
    }
    metrics, extras = {}, {}
    with Script(always(200, answer)) as server:
        scores = client_of(server.url, with_columns=True, model="plan")(
            prompts=["p", "q"],
            completions=["a", "b"],
            completion_ids=np.array([[1, 2], [3, 4]]),
            log_metric=metrics.__setitem__,
            log_extra=extras.__setitem__,
            plan=[["(x)"], []],
            cost=np.array([1, 2]),
        )
    assert server.bodies() == [
        {
            "model": "plan",
            "messages": ["pa", "qb"],
            "prompts": ["p", "q"],
            "completions": ["a", "b"],
            "completion_ids": [[1, 2], [3, 4]],
            "columns": {"plan": [["(x)"], []], "cost": [1, 2]},
        }
    ]
    assert scores == [1.0, None]
    assert extras == {"verdict": ["valid", "syntax"]}
    assert np.isnan(metrics.pop("reward/odd"))
    assert metrics == {
        "reward/mean": 0.1,
        "reward_server/requests": 1.0,
        "reward_server/retries": 0.0,
        "reward_server/failures": 0.0,
    }


def test_client_cuts_columns_with_their_rows():
    def echo(number, body):
        return 200, {"scores": body["columns"]["value"], "extras": {"ids": body["completion_ids"]}}

    extras = {}
    with Script(echo) as server:
        scores = ask(
            client_of(server.url, with_columns=True, batch_size=2),
            "abcde",
            completion_ids=[[n] for n in range(5)],
            value=[5.0, 4.0, 3.0, 2.0, 1.0],
            log_extra=extras.__setitem__,
        )
    assert scores == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert extras == {"ids": [[0], [1], [2], [3], [4]]}


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"cost": [float("nan"), 1.0]}, "column cost: expected values that JSON can hold, got: "),
        ({"blob": [b"x", b"y"]}, "column blob: expected values that JSON can hold, got: a bytes"),
        ({"cost": [1.0]}, "column cost: expected a list of 2 values, got 1"),
        ({"state": "ab"}, "column state: expected a list of 2 values, got str"),
        ({"state": 7}, "column state: expected a list of 2 values, got int"),
    ],
)
def test_client_names_a_column_that_cannot_be_sent(columns, named):
    client = client_of("http://127.0.0.1:1/", with_columns=True)
    with pytest.raises(DataError, match=named):
        ask(client, **columns)


def test_merge_weighs_metrics_by_rows_and_fills_columns():
    tenth = 0.1
    assert tenth * 3 / 3 != tenth  # hence a metric of one answer is not to be averaged
    merged = merge(
        [
            Answer([1.0, 2.0, 3.0], {"mean": 0.5, "first": tenth}, {"verdict": ["a", "b", "c"]}),
            Answer([None], {"mean": 0.1}, {}),
        ]
    )
    assert merged.scores == [1.0, 2.0, 3.0, None]
    assert merged.metrics == {"mean": pytest.approx(0.4), "first": tenth}
    assert merged.extras == {"verdict": ["a", "b", "c", None]}


# --- answers that are none


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"scores": [1.0]}, "expected 2 scores, got 1"),
        ({"scores": [1.0, 2.0, 3.0]}, "expected 2 scores, got 3"),
        (b"<html>oops</html>", "expected JSON, got '<html>oops</html>'"),
        (b"\xff\xfe", "expected JSON, got "),
        (b"", "expected JSON, got ''"),
        (b"[" * 100_000, "expected JSON, got "),
        ([1.0, 2.0], r'expected {"scores": \[...\]}, got '),
        ({"score": [1.0, 2.0]}, r'expected {"scores": \[...\]}, got '),
        ({"scores": {"0": 1.0}}, r'expected {"scores": \[...\]}, got '),
        (b'{"scores": [1.0, NaN]}', "expected a finite number or null as score 1, got 'NaN'"),
        (b'{"scores": [-Infinity, 1.0]}', "expected a finite number or null as score 0, got '-Infinity'"),
        (b'{"scores": [1.0, 1e999]}', "expected a finite number or null as score 1, got 'Infinity'"),
        (b'{"scores": [1.0, 1%s]}' % (b"0" * 400), "expected a finite number or null as score 1, got '1000"),
        ({"scores": ["1.0", 2.0]}, "expected a finite number or null as score 0, got '\"1.0\"'"),
        ({"scores": [1.0, [2.0]]}, "expected a finite number or null as score 1, got 'a list'"),
        ({"scores": [1.0, True]}, "expected a finite number or null as score 1, got 'true'"),
        ({"scores": [1.0, 2.0], "metrics": {"m": "x"}}, "metrics: expected an object of numbers or null"),
        ({"scores": [1.0, 2.0], "metrics": [1]}, "metrics: expected an object of numbers or null"),
        ({"scores": [1.0, 2.0], "extras": {"e": [1]}}, "column e: expected a list of 2 values, got 1"),
        ({"scores": [1.0, 2.0], "extras": "e"}, "extras: expected an object of lists"),
    ],
)
def test_client_refuses_an_answer_that_is_none_without_asking_again(content, named):
    message = f"reward server http://127.0.0.1:[0-9]+/score: {named}"
    with Script(always(200, content)) as server, pytest.raises(RewardError, match=message) as refused:
        ask(client_of(server.url))
    assert len(server.requests) == 1
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()


def test_client_takes_null_for_a_text_that_cannot_be_scored():
    with Script(always(200, {"scores": [None, 3]})) as server:
        assert ask(client_of(server.url)) == [None, 3.0]


def test_read_answer_keeps_every_bit_of_a_number():
    values = [random.Random(0).uniform(-1e3, 1e3) for _ in range(100)] + [5e-324, 1.7976931348623157e308, -0.0]
    assert read_answer(json.dumps({"scores": values}).encode(), len(values)).scores == values


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 500, 501, 204, 302])
def test_client_does_not_ask_again_where_that_cannot_help(status):
    content = b"" if status == 204 else {"error": "messages: wrong\x1b[31m"}
    elsewhere = {"Location": "/other"} if status == 302 else {}
    message = f"expected status 200, got {status} "
    with Script(always(status, content, elsewhere)) as server, pytest.raises(RewardError, match=message) as refused:
        ask(client_of(server.url))
    assert len(server.requests) == 1
    assert status == 204 or "'messages: wrong\\x1b[31m'" in str(refused.value)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_client_asks_again_where_that_may_help(status):
    metrics = {}
    with Script(lambda number, body: by_length(number, body) if number > 2 else (status, b"later")) as server:
        assert ask(client_of(server.url), log_metric=metrics.__setitem__) == [2.0, 3.0]
    assert len(server.requests) == 3
    assert metrics["reward_server/retries"] == 2.0 and metrics["reward_server/failures"] == 0.0


def test_client_gives_up_after_its_retries_and_says_so():
    message = r"expected status 200, got 503 'busy' \(3 attempts\)$"
    with Script(always(503, {"error": "busy"})) as server, pytest.raises(RewardError, match=message):
        ask(client_of(server.url, retries=2))
    assert len(server.requests) == 3


@pytest.mark.parametrize("workers", [1, 4])
def test_client_gets_every_score_from_a_server_that_fails_3_of_10_times(workers):
    """Attempts 2, 3 and 5 of every ten fail, in three ways."""
    failures = {2: 503, 3: 502, 5: 429}

    def flaky(number, body):
        status = failures.get(number % 10)
        return by_length(number, body) if status is None else (status, b"")

    completions, metrics = ["x" * n for n in range(60)], {}
    with Script(flaky) as server:
        client = client_of(server.url, batch_size=2, workers=workers, retries=8, backoff_s=0.001)
        assert ask(client, completions, log_metric=metrics.__setitem__) == [1.0 + n for n in range(60)]
    failed = sum(number % 10 in failures for number in range(1, len(server.requests) + 1))
    assert failed >= 9
    assert metrics == {
        "reward_server/requests": 30.0,
        "reward_server/retries": float(failed),
        "reward_server/failures": 0.0,
    }
    assert len(server.requests) == 30 + failed


def test_client_says_which_rows_failed():
    def refuse_c(number, body):
        return (422, {"error": "no"}) if "pc" in body["messages"] else by_length(number, body)

    with Script(refuse_c) as server:
        with pytest.raises(RewardError) as failed:
            ask(client_of(server.url, batch_size=2), "abcde")
        assert failed.value.rows == range(2, 4)
        metrics, extras = {}, {}
        report = {"log_metric": metrics.__setitem__, "log_extra": extras.__setitem__}
        scores = ask(client_of(server.url, batch_size=2, on_error="none"), "abcde", **report)
    assert scores == [2.0, 2.0, None, None, 2.0]
    assert metrics["reward_server/failures"] == 1.0 and metrics["reward_server/requests"] == 3.0


def test_client_stops_asking_when_a_request_failed_and_reports_its_counts_all_the_same():
    metrics = {}
    with Script(always(500, {"error": "broken"})) as server, pytest.raises(RewardError):
        ask(client_of(server.url, batch_size=1, workers=1), "abcdef", log_metric=metrics.__setitem__)
    assert len(server.requests) == 1
    assert metrics == {"reward_server/requests": 1.0, "reward_server/retries": 0.0, "reward_server/failures": 1.0}


# --- time


def waits_of(monkeypatch):
    waits = []

    async def note(seconds):
        waits.append(seconds)

    monkeypatch.setattr(http_client.asyncio, "sleep", note)
    return waits


def test_client_doubles_the_wait_before_each_retry_up_to_a_bound(monkeypatch):
    waits = waits_of(monkeypatch)
    with Script(always(503, b"")) as server, pytest.raises(RewardError):
        ask(client_of(server.url, backoff_s=2.0, retries=7))
    assert waits == [2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("7", 7, 7),
        ("100000", 60, 60),  # bounded
        ("soon", 0, 0.01),
        ("-5", 0, 0.01),
        ("nan", 0, 0.01),
    ],
)
def test_client_keeps_to_retry_after_within_a_bound(monkeypatch, value, low, high):
    waits = waits_of(monkeypatch)
    header = {"Retry-After": value}
    with Script(lambda number, body: (503, b"", header) if number == 1 else by_length(number, body)) as server:
        ask(client_of(server.url, backoff_s=0.01))
    (wait,) = waits
    assert low <= wait <= high


def drip_headers(connection):
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
        connection.send(bytes([byte]))
        time.sleep(0.02)


def drip_body(connection):
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while True:
        connection.send(b" ")
        time.sleep(0.02)


def hang(connection):
    while connection.recv(65536):
        pass


@pytest.mark.parametrize("serve", [hang, drip_headers, drip_body])
def test_client_waits_a_bounded_time_for_a_server_that_does_not_get_to_an_end(serve):
    metrics = {}
    with raw_server(serve) as url:
        start = time.monotonic()
        with pytest.raises(RewardError, match=r"expected a complete answer within 0.3 s, got none \(2 attempts\)"):
            ask(client_of(url, timeout_s=0.3, retries=1), log_metric=metrics.__setitem__)
        assert time.monotonic() - start < PATIENCE_S
    assert metrics["reward_server/retries"] == 1.0


def test_client_stops_reading_an_answer_without_an_end(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 2**20)

    def flood(connection):
        connection.recv(65536)
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.send(b" " * 65536)

    with raw_server(flood) as url, pytest.raises(RewardError, match="at most 1048576 bytes, got a longer one"):
        ask(client_of(url))


# --- connections


def test_client_names_a_server_that_is_not_there():
    url = f"http://127.0.0.1:{closed_port()}/score"
    metrics = {}
    with pytest.raises(RewardError, match=rf"reward server {url}: expected an answer, got ConnectError .*\(2 attempts"):
        ask(client_of(url, retries=1), log_metric=metrics.__setitem__)
    assert metrics == {"reward_server/requests": 1.0, "reward_server/retries": 1.0, "reward_server/failures": 1.0}


@pytest.mark.parametrize("host", ["a" * 70 + ".invalid", "xn--0.invalid"])
def test_client_names_a_host_that_has_no_address(host):
    with pytest.raises(JaxppoError, match="reward server"):
        ask(client_of(f"http://{host}/", retries=0))


def cut_off(connection):
    connection.recv(65536)
    connection.send(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"scores": [1.0, ')


def hang_up(connection):
    connection.recv(65536)


@pytest.mark.parametrize("serve", [cut_off, hang_up])
def test_client_asks_again_when_the_server_goes_away_in_the_middle(serve):
    metrics = {}
    broken = r"expected an answer, got (ReadError|RemoteProtocolError).* \(3 attempts\)$"
    with raw_server(serve) as url, pytest.raises(RewardError, match=broken):
        ask(client_of(url, retries=2), log_metric=metrics.__setitem__)
    assert metrics["reward_server/retries"] == 2.0


def test_client_recovers_when_a_server_that_was_killed_comes_back():
    calls = []

    def once_broken(connection):
        calls.append(1)
        if len(calls) == 1:
            return cut_off(connection)
        connection.recv(65536)
        answer = b'{"scores": [1.0, 2.0]}'
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))

    with raw_server(once_broken) as url:
        assert ask(client_of(url)) == [1.0, 2.0]


def test_client_uses_no_proxy_of_the_environment(monkeypatch):
    proxy = f"http://127.0.0.1:{closed_port()}"
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(httpx2.ConnectError):  # the proxy is taken up by a client that looks
        httpx2.post("http://127.0.0.1:1/")
    with Script(by_length) as server:
        assert ask(client_of(server.url, retries=0)) == [2.0, 3.0]


def test_client_works_inside_an_event_loop_and_from_several_threads():
    with Script(by_length) as server:
        client = client_of(server.url)

        async def in_a_notebook():
            return ask(client)

        assert asyncio.run(in_a_notebook()) == [2.0, 3.0]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: ask(client), range(8))) == [[2.0, 3.0]] * 8


# --- secrets


def test_client_sends_the_token_of_the_environment(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with Script(by_length) as server:
        ask(client_of(server.url))
        ask(client_of(server.url, token="another"))
    assert [headers["Authorization"] for headers, _, _ in server.requests] == [f"Bearer {TOKEN}", "Bearer another"]


def test_client_takes_an_empty_variable_for_no_token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    with Script(by_length) as server:
        ask(client_of(server.url))
    assert "Authorization" not in server.requests[0][0]


def test_client_sends_user_and_password_of_the_url():
    with Script(by_length) as server:
        ask(client_of(server.url.replace("//", "//me:pass%20word@")))
    (headers, _, _) = server.requests[0]
    assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:pass word").decode()
    assert "pass" not in headers["Host"]


def everything_said(error):
    """The message and all that a traceback of it would show, whatever exceptions stand behind it."""
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    shown = [f"{link} {link!r} {vars(link)} {link.args}" for link in chain]
    return " ".join([*shown, "".join(traceback.format_exception(error))])


def repeats_its_request(number, body):
    """A server that tells in its error what it was sent."""
    return 401, {"error": f"wrong: Bearer {TOKEN}; password hunter2hunter2 of someuser; key=query-secret"}


@pytest.mark.parametrize("answer", [repeats_its_request, always(200, TOKEN), always(200, {"scores": [TOKEN, 1.0]})])
@pytest.mark.parametrize("place", ["environment", "argument", "url"])
def test_no_secret_is_in_a_message_a_log_or_the_output(answer, place, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    if place == "environment":
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with Script(answer) as server:
        url = f"{server.url}?v=query-secret"
        if place == "url":
            url = url.replace("//", "//someuser:hunter2hunter2@")
        client = client_of(url, token=TOKEN if place == "argument" else None)
        with pytest.raises(RewardError) as refused:
            ask(client)
    assert server.requests[0][1] == "/score?v=query-secret" and "Authorization" in server.requests[0][0]
    captured = capfd.readouterr()
    said = " ".join([repr(client), everything_said(refused.value), caplog.text, captured.out, captured.err])
    assert "127.0.0.1" in said and "httpcore2" in caplog.text
    hidden = ["query-secret", "hunter2hunter2", "someuser", base64.b64encode(b"someuser:hunter2hunter2").decode()]
    for secret in hidden if place == "url" else ["query-secret", TOKEN]:
        assert secret not in said


def test_no_secret_is_in_the_message_about_a_server_that_is_not_there(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    client = client_of(f"http://127.0.0.1:{closed_port()}/?v=query-" + "secret", retries=1)
    with pytest.raises(RewardError) as refused:
        ask(client)
    said = everything_said(refused.value) + caplog.text
    assert TOKEN not in said and "query-secret" not in said


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ümlaut", "quote'"])
def test_client_refuses_a_token_that_no_header_can_hold_without_showing_it(token, monkeypatch):
    with pytest.raises(ConfigError, match="token: expected a token of letters") as refused:
        RewardClient("http://127.0.0.1/", token=token)
    assert token not in everything_said(refused.value)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}: expected a token of letters") as refused:
        RewardClient("http://127.0.0.1/")
    assert token not in everything_said(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/",
        "file:///etc/passwd",
        "localhost:8000",
        "http://",
        "http:///path",
        "http://h:99999/",
        "http://\n",
    ],
)
def test_client_refuses_what_is_no_http_address(url):
    with pytest.raises(ConfigError, match="reward server url: expected an address such as "):
        RewardClient(url)


def test_client_hides_the_password_of_a_url_it_refuses():
    with pytest.raises(ConfigError) as refused:
        RewardClient("ftp://someuser:hunter2hunter2@host/?key=query-secret")
    assert "hunter2" not in str(refused.value) and "query-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_s", 0),
        ("timeout_s", float("inf")),
        ("retries", -1),
        ("backoff_s", float("nan")),
        ("batch_size", 0),
        ("workers", 0),
        ("on_error", "skip"),
    ],
)
def test_client_names_a_bad_option(option, value):
    with pytest.raises(ConfigError, match=f"^{option}: expected"):
        RewardClient("http://127.0.0.1/", **{option: value})


def test_client_refuses_a_token_beside_a_password():
    with pytest.raises(ConfigError, match="token: expected none beside user and password in the url") as refused:
        RewardClient("http://user:word@127.0.0.1/", token=TOKEN)
    assert TOKEN not in str(refused.value)
