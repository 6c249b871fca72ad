"""The client of reward servers, against servers that fail in every way a server can; all on loopback."""

import asyncio
import base64
import contextlib
import datetime
import decimal
import json
import logging
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxppo.errors import ConfigError, DataError
from jaxppo.reward_functions import http_client
from jaxppo.reward_functions.http_client import RewardClient, RewardError
from jaxppo.reward_functions.http_contract import TOKEN_VARIABLE, encode_request, read_answer
from jaxppo.rewards import Failed
from tests.commands import free_port
from tests.reward_servers import PATIENCE_S, TOKEN, Script


@pytest.fixture(autouse=True)
def _no_token_and_short_waits(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.01)


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


def client_of(url, **options):
    return RewardClient(url, **{"timeout_s": 10.0} | options)


def ask(client, completions=("a", "bb"), **others):
    return client(prompts=["p"] * len(completions), completions=list(completions), **others)


def counts(requests, retries, failures):
    named = {"requests": requests, "retries": retries, "failures": failures}
    return {f"reward_server/{name}": float(count) for name, count in named.items()}


def test_client_speaks_llama_factorys_contract():
    with Script(always(200, {"scores": [0.5, -1]})) as server:
        scores = client_of(server.url)(prompts=["Q: ", "R: "], completions=["x", "y"])
    (headers, path, body), *more = server.requests
    assert scores == [0.5, -1.0] and not more
    assert (body["model"], body["messages"]) == ("model", ["Q: x", "R: y"])
    assert path == "/score" and headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    with pytest.raises(DataError, match=r"completions.* 1 .* 2"):
        client_of(server.url)(prompts=["a"], completions=["1", "2"])


def test_client_cuts_a_large_call_into_requests_of_which_only_some_run_at_a_time(monkeypatch):
    monkeypatch.setattr(http_client, "MAX_REQUESTS", 3)
    monkeypatch.setattr(http_client, "BATCH_SIZE", 16)
    completions = ["x" * (n * 7 % 23) for n in range(101)]
    with Script(by_length) as server:
        scores = ask(client_of(server.url), completions)
        assert ask(client_of(server.url), []) == []
    assert scores == [1 + len(text) for text in completions]
    assert sorted(len(body["messages"]) for body in server.bodies) == [5, *[16] * 6]
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

    monkeypatch.setattr(http_client, "BATCH_SIZE", 1)
    with Script(meet) as server:
        ask(client_of(server.url, timeout_s=PATIENCE_S), ["x"] * 9)
    assert most == 3 and len(server.requests) == 9


def test_client_sends_columns_with_their_rows_and_hands_on_what_the_server_reports(monkeypatch):
    monkeypatch.setattr(http_client, "BATCH_SIZE", 2)
    monkeypatch.setattr(http_client, "MAX_REQUESTS", 1)

    def echo(number, body):
        scores = [None if cost == 2 else cost for cost in body["columns"]["cost"]]
        metrics = {"reward/mean": 0.1, "reward/odd": None}
        return 200, {"scores": scores, "metrics": metrics, "extras": {"ids": body["completion_ids"]}}

    metrics, extras = {}, {}
    with Script(echo) as server:
        scores = client_of(server.url)(
            prompts=["p", "q", "r"],
            completions=["a", "b", "c"],
            completion_ids=np.array([[1, 2], [3, 4], [5, 6]]),
            log_metric=metrics.__setitem__,
            log_extra=extras.__setitem__,
            plan=[["(x)"], [], ["(y)"]],
            cost=np.array([1, 2, 3]),
        )
    first, second = server.bodies
    assert first == {
        "model": "model",
        "messages": ["pa", "qb"],
        "prompts": ["p", "q"],
        "completions": ["a", "b"],
        "completion_ids": [[1, 2], [3, 4]],
        "columns": {"plan": [["(x)"], []], "cost": [1, 2]},
    }
    assert (second["messages"], second["columns"]) == (["rc"], {"plan": [["(y)"]], "cost": [3]})
    assert scores == [1.0, None, 3.0]
    assert extras == {"ids": [[1, 2], [3, 4], [5, 6]]}
    assert np.isnan(metrics.pop("reward/odd"))
    assert metrics == {"reward/mean": pytest.approx(0.1)} | counts(2, 0, 0)


def test_dates_and_decimals_of_a_column_are_text():
    columns = {"at": [datetime.date(2026, 1, 2)], "price": [decimal.Decimal("1.50")], "count": [np.int64(3)]}
    body = json.loads(encode_request({"columns": columns}))
    assert body["columns"] == {"at": ["2026-01-02"], "price": ["1.50"], "count": [3]}


@pytest.mark.parametrize(
    ("name", "values"), [("cost", [float("nan"), 1.0]), ("blob", [b"x", b"y"]), ("short", [1.0]), ("text", "ab")]
)
def test_client_names_a_column_that_cannot_be_sent(name, values):
    client = client_of("http://127.0.0.1:1/")
    with pytest.raises(DataError, match=f"column '{name}'"):
        ask(client, **{name: values})


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<html>oops</html>", "<html>oops"),
        (b"[" * 100_000, "JSON"),
        ([0.25], "scores"),
        ({"scores": [0.25, 0.5]}, "1 scores, got 2"),
        (b'{"scores": [NaN]}', "score 0, .*NaN"),
        (b'{"scores": [1%s]}' % (b"0" * 400), "score 0, .*1000"),
        ({"scores": ["0.25"]}, "score 0, .*0.25"),
        ({"scores": [True]}, "score 0, .*true"),
        ({"scores": [0.25], "metrics": {"m": "x"}}, "metrics"),
        ({"scores": [0.25], "extras": {"e": [1, 2]}}, "extras: .*'e'"),
        ({"scores": [0.25], "extras": "e"}, "extras"),
    ],
)
def test_read_answer_refuses_what_is_no_answer_about_one_row(content, named):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(DataError, match=named):
        read_answer(body, 1)


WRONG = {"error": "messages: wrong\x1b[31m"}
SHOWN = "messages: wrong"


@pytest.mark.parametrize(
    ("status", "content", "named"),
    [
        *((status, WRONG, SHOWN) for status in (404, 422, 500, 302)),
        (204, b"", "204"),
        (200, b"<html>\x1b[31m" * 99, ""),
    ],
)
def test_client_does_not_ask_again_where_that_cannot_help(status, content, named):
    elsewhere = {"Location": "/other"} if status == 302 else {}
    with Script(always(status, content, elsewhere)) as server, pytest.raises(RewardError) as refused:
        ask(client_of(server.url))
    message = str(refused.value)
    assert len(server.requests) == 1
    assert server.url in message and named in message and (status == 200 or str(status) in message)
    assert len(message) < 400 and message.isprintable()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_client_asks_again_where_that_may_help(status):
    metrics = {}
    with Script(lambda number, body: by_length(number, body) if number > 2 else (status, b"later")) as server:
        assert ask(client_of(server.url), log_metric=metrics.__setitem__) == [2.0, 3.0]
    assert len(server.requests) == 3 and metrics == counts(1, 2, 0)


def test_client_stops_asking_after_a_failure_unless_the_other_rows_matter(monkeypatch):
    monkeypatch.setattr(http_client, "BATCH_SIZE", 2)
    monkeypatch.setattr(http_client, "MAX_REQUESTS", 1)

    def refuse_c(number, body):
        return (422, {"error": "no"}) if "pc" in body["messages"] else by_length(number, body)

    metrics = {}
    with Script(refuse_c) as server:
        with pytest.raises(RewardError):
            ask(client_of(server.url), "abcde", log_metric=metrics.__setitem__)
        assert len(server.requests) == 2 and metrics == counts(2, 0, 1)  # reported all the same
        scores = ask(client_of(server.url, on_error="failed"), "abcde", log_metric=metrics.__setitem__)
    assert scores[:2] == [2.0, 2.0] and scores[4] == 2.0 and metrics == counts(3, 0, 1)
    assert scores[2] == scores[3] and isinstance(scores[2], Failed) and "422" in scores[2].reason


@pytest.fixture
def waits(monkeypatch):
    seconds = []

    async def note(delay):
        seconds.append(delay)

    monkeypatch.setattr(http_client.asyncio, "sleep", note)
    return seconds


def test_client_doubles_the_wait_up_to_a_bound_and_gives_up_or_keeps_to_retry_after(waits, monkeypatch):
    monkeypatch.setattr(http_client, "BACKOFF_S", 2.0)
    with Script(always(503, {"error": "busy"})) as server, pytest.raises(RewardError, match=r"503 .*busy.*8 attempts"):
        ask(client_of(server.url, retries=7))
    assert waits == [2, 4, 8, 16, 32, 60, 60] and len(server.requests) == 8
    monkeypatch.setattr(http_client, "BACKOFF_S", 0.01)
    for value, expected in (("7", 7), ("100000", 60), ("soon", 0.01), ("-5", 0.01)):
        waits.clear()
        first = 503, b"", {"Retry-After": value}
        with Script(lambda number, body, first=first: first if number == 1 else by_length(number, body)) as server:
            ask(client_of(server.url))
        assert waits == [expected]


def drip(connection):
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while True:
        connection.send(b" ")
        time.sleep(0.02)


def hang(connection):
    while connection.recv(65536):
        pass


def cut_off(connection):
    connection.recv(65536)
    connection.send(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"scores": [1.0, ')


@pytest.mark.parametrize(("serve", "kind"), [(hang, "timeouts"), (drip, "timeouts"), (cut_off, "errors")])
def test_client_asks_a_server_that_does_not_get_to_an_end_again_for_a_bounded_time(serve, kind):
    metrics = {}
    with raw_server(serve) as url:
        client = client_of(url, timeout_s=0.3, retries=1, on_error="failed")
        first, second = ask(client, log_metric=metrics.__setitem__)
    assert first == second and first.kind == kind and "2 attempts" in first.reason
    assert metrics == counts(1, 1, 1)


def everything_said(error):
    """The message and all that a traceback of it would show, whatever exceptions it was raised from."""
    chain = [error]
    while chain[-1].__cause__ or chain[-1].__context__:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    shown = [f"{link} {link!r} {vars(link)} {link.args}" for link in chain]
    return " ".join([*shown, "".join(traceback.format_exception(error))])


def test_client_names_a_server_that_is_not_running_and_no_secret(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    address, metrics = f"127.0.0.1:{free_port()}", {}
    with pytest.raises(RewardError, match=rf"{address}.*ConnectError.*2 attempts") as refused:
        ask(client_of(f"http://{address}/?v=query-" + "secret", retries=1), log_metric=metrics.__setitem__)
    assert metrics == counts(1, 1, 1)
    said = everything_said(refused.value) + caplog.text
    assert TOKEN not in said and "query-secret" not in said and "python -m jaxppo.reward_server" in said


def test_client_uses_no_proxy_of_the_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
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


def test_client_sends_the_token_or_user_and_password_of_the_url(monkeypatch):
    with Script(by_length) as server:
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
        ask(client_of(server.url))
        monkeypatch.setenv(TOKEN_VARIABLE, "")  # as if it were not set
        ask(client_of(server.url))
        ask(client_of(server.url.replace("//", "//me:pass%20word@")))
    basic = "Basic " + base64.b64encode(b"me:pass word").decode()
    sent = [headers.get("Authorization") for headers, _, _ in server.requests]
    assert sent == [f"Bearer {TOKEN}", None, basic]
    assert "pass" not in server.requests[-1][0]["Host"]


def repeats_its_request(number, body):
    """A server whose error holds what it was sent."""
    return 401, {"error": f"wrong: Bearer {TOKEN}; password hunter2hunter2 of someuser; key=query-secret"}


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        (repeats_its_request, "environment"),
        (always(200, TOKEN), "environment"),
        (always(200, {"scores": [TOKEN, 1.0]}), "environment"),
        (always(200, {"scores": [1.0, 1.0], "extras": TOKEN}), "environment"),
        (always(200, {"scores": [1.0, 1.0], "extras": {TOKEN: 0}}), "environment"),
        (repeats_its_request, "url"),
    ],
)
def test_no_secret_is_in_a_message_a_log_or_the_output(answer, place, monkeypatch, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    if place == "environment":
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with Script(answer) as server:
        url = f"{server.url}?v=query-secret"
        if place == "url":
            url = url.replace("//", "//someuser:hunter2hunter2@")
        client = client_of(url)
        with pytest.raises(RewardError) as refused:
            ask(client)
    assert server.requests[0][1] == "/score?v=query-secret" and "Authorization" in server.requests[0][0]
    captured = capfd.readouterr()
    said = " ".join([repr(client), everything_said(refused.value), caplog.text, captured.out, captured.err])
    assert "127.0.0.1" in said and "httpcore2" in caplog.text
    hidden = ["query-secret", "hunter2hunter2", "someuser", base64.b64encode(b"someuser:hunter2hunter2").decode()]
    for secret in hidden if place == "url" else ["query-secret", TOKEN]:
        assert secret not in said


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ümlaut"])
def test_client_refuses_a_token_that_no_header_can_hold_without_showing_it(token, monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ConfigError, match=f"^{TOKEN_VARIABLE}: ") as refused:
        RewardClient("http://127.0.0.1/")
    assert token not in everything_said(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://someuser:hunter2hunter2@host/?key=query-secret",
        "localhost:8000",
        "http:///path",
        "http://h:99999/",
        "http://\n",
    ],
)
def test_client_refuses_what_is_no_http_address_and_hides_its_password(url):
    with pytest.raises(ConfigError, match="reward server: ") as refused:
        RewardClient(url)
    assert "hunter2" not in str(refused.value) and "query-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_s", float("inf")),
        ("retries", -1),
        ("on_error", "skip"),
    ],
)
def test_client_names_a_bad_option(option, value):
    with pytest.raises(ConfigError, match=f"^{option}: "):
        RewardClient("http://127.0.0.1/", **{option: value})


def test_client_refuses_a_token_beside_a_password_in_the_address(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with pytest.raises(ConfigError, match=f"^{TOKEN_VARIABLE}: ") as refused:
        RewardClient("http://user:word@127.0.0.1/")
    assert TOKEN not in str(refused.value)
