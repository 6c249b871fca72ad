"""Rewards from a server over HTTP: LLaMA-Factory's `reward_model_type: api`.

Every attempt has a total time limit, is retried where that can help, and its answer is checked before a score is used.
The messages are in `http_contract.py`, a server is `jaxppo/reward_server.py`.
"""

import asyncio
import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import httpx2

from jaxppo.config import require
from jaxppo.config.redact import REDACTED, redact
from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.reward_functions.http_contract import (
    check_lengths,
    checked_token,
    encode_request,
    environment_token,
    messages,
    read_answer,
)
from jaxppo.rewards import Failed, Scores, join_scores, run_to_end

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Temporary failures; 500 is not among them, since then the reward function itself failed."""

MAX_WAIT_S = 60.0
"""Longest wait before a retry, whatever back-off or `Retry-After` say."""

MAX_ANSWER_BYTES = 64 * 2**20
"""A longer answer is refused."""

MAX_QUOTED = 200
"""Most characters of a server's text in a message."""

MIN_SECRET = 4
"""Shorter secrets are not searched for in messages: they would match inside ordinary words."""


class RewardError(JaxppoError):
    """A reward server gave no usable scores for a request.

    Args:
        message: what was expected and what came, without secrets.
        rows: the rows of the call that the request was about.
        timed_out: the last attempt took too long.
    """

    def __init__(self, message: str, rows: range = range(0), timed_out: bool = False):
        super().__init__(message)
        self.rows = rows
        self.timed_out = timed_out


@dataclass(slots=True)
class _Call:
    """Counts of one call of the client."""

    requests: int = 0
    retries: int = 0  # attempts beyond the first of each request
    # Of requests given up, in the order of time
    errors: list[RewardError] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        return {
            "reward_server/requests": float(self.requests),
            "reward_server/retries": float(self.retries),
            "reward_server/failures": float(len(self.errors)),
        }


class _Request(NamedTuple):
    rows: range
    body: bytes


class _Problem(NamedTuple):
    """Why an attempt gave no scores."""

    text: str
    retry: bool = False
    wait_s: float = 0.0  # what the server asked for
    timed_out: bool = False


class RewardClient:
    """A reward function that asks a server.

    One call becomes requests of up to `batch_size` rows, up to `workers` of them at a time. An attempt takes at most
    `timeout_s` from connecting to the last byte. It is retried (`retries` times, with exponential back-off) after a
    broken or refused connection, a time-out, or status 429, 502, 503 or 504, whose `Retry-After` in seconds is kept up
    to `MAX_WAIT_S`. Redirects are not followed, and proxy settings of the environment are not used: rows and token go
    nowhere but to `url`. A client holds no connection between calls.

    Args:
        url: http or https address to post to. With user and password in it, they are sent as basic authentication.
        timeout_s: limit of an attempt as a whole, in seconds.
        retries: attempts after the first.
        backoff_s: wait before the first retry, doubled before each further one.
        token: bearer token; default: the environment variable `JAXPPO_REWARD_TOKEN`.
        model: value of "model" in the request.
        with_columns: send prompts, completions, token ids and every column of the data too: for `reward_server.py`,
            not for LLaMA-Factory's servers.
        batch_size: most rows of a request.
        workers: most requests at a time.
        on_error: "raise" a `RewardError` for a request that finally failed, or give its rows None ("none") or a
            `rewards.Failed` with the reason ("failed").

    Raises:
        ConfigError: a bad value.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        token: str | None = None,
        model: str = "model",
        with_columns: bool = False,
        batch_size: int = 64,
        workers: int = 4,
        on_error: Literal["raise", "none", "failed"] = "raise",
    ):
        require(0 < timeout_s < math.inf, "timeout_s", "a finite number above 0", timeout_s)
        require(0 <= backoff_s < math.inf, "backoff_s", "a finite number of at least 0", backoff_s)
        require(retries >= 0, "retries", "an integer of at least 0", retries)
        require(batch_size >= 1, "batch_size", "an integer of at least 1", batch_size)
        require(workers >= 1, "workers", "an integer of at least 1", workers)
        require(
            on_error in ("raise", "none", "failed"), "on_error", "raise, none or failed", on_error
        )
        # What messages call a reward function by.
        self.__name__ = "reward_server"
        self._url = _parsed(url)
        self._timeout_s = timeout_s
        self._retries = retries
        self._backoff_s = backoff_s
        self._model = model
        self._with_columns = with_columns
        self._batch_size = batch_size
        self._workers = workers
        self._on_error = on_error
        token = environment_token() if token is None else checked_token(token, "token")
        self._authorization = _authorization(self._url, token)

    def __repr__(self) -> str:
        return f"RewardClient({self.address!r})"

    @property
    def address(self) -> str:
        """Return the url without user, password and query, for messages."""
        return redact(str(self._url.copy_with(userinfo=b"", query=None)))

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[Any]:
        """Score completions.

        Args:
            prompts: text of each prompt.
            completions: text after each prompt.
            completion_ids: its tokens.
            log_metric: gets what the server reports (over several requests: means weighted by their rows), and
                `reward_server/requests`, `/retries` and `/failures` of this call.
            log_extra: gets the server's columns.
            columns: columns of the data, one value per completion.

        Returns:
            One number per completion; None where the server gave null. The rows of a failed request get what
            `on_error` says.

        Raises:
            RewardError: a request failed and on_error is "raise"; its `rows` are those of the request.
            DataError: lengths differ, or a column cannot be written as JSON.
        """
        texts = messages(prompts, completions)
        arguments: dict[str, Any] = {"prompts": prompts, "completions": completions}
        if completion_ids is not None:
            arguments["completion_ids"] = completion_ids
        requests = self._requests(texts, arguments, columns)
        call = _Call()
        metrics: dict[str, float] = {}
        try:
            scores = self._score(requests, call)
            metrics |= scores.metrics
        finally:
            # Also of a call that fails, so that a run which stops shows how often its server did
            # not answer.
            if log_metric is not None:
                for name, value in (metrics | call.metrics()).items():
                    log_metric(name, value)
        if log_extra is not None:
            for name, values in scores.extras.items():
                log_extra(name, values)
        return scores.values

    def _requests(
        self, texts: list[str], arguments: dict[str, Any], columns: dict[str, Any]
    ) -> list[_Request]:
        if self._with_columns:
            check_lengths(arguments | columns, len(texts))
        # All are encoded before the first is sent, so that a value that JSON cannot hold costs no
        # request.
        requests = []
        for start in range(0, len(texts), self._batch_size):
            stop = min(start + self._batch_size, len(texts))
            extension: dict[str, Any] = {}
            if self._with_columns:
                extension = _sliced(arguments, start, stop)
                extension["columns"] = _sliced(columns, start, stop)
            body = encode_request(self._model, texts[start:stop], extension)
            requests.append(_Request(range(start, stop), body))
        return requests

    def _score(self, requests: list[_Request], call: _Call) -> Scores:
        answers = run_to_end(self._ask_all(requests, call))
        if call.errors and self._on_error == "raise":
            raise call.errors[0]
        return join_scores(answers)

    async def _ask_all(self, requests: list[_Request], call: _Call) -> list[Scores]:
        turns = asyncio.Semaphore(self._workers)
        # The transport below httpx's client: it follows no redirects, uses no proxies and logs no
        # URLs. Its own retries are for connecting alone, and are not counted.
        async with httpx2.AsyncHTTPTransport(verify=self._url.scheme == "https") as transport:

            async def ask(request: _Request) -> Scores:
                async with turns:
                    return await self._ask(transport, request, call)

            return await asyncio.gather(*map(ask, requests))

    async def _ask(
        self, transport: httpx2.AsyncHTTPTransport, request: _Request, call: _Call
    ) -> Scores:
        """Ask until there is an answer; the rows of a request that finally failed have no scores."""
        # The call raises, so nobody would read the scores.
        if call.errors and self._on_error == "raise":
            return Scores([], {}, {})
        call.requests += 1
        outcome = await self._attempt(transport, request)
        for retry in range(self._retries):
            if isinstance(outcome, Scores) or not outcome.retry:
                break
            backoff_s = self._backoff_s * 2**retry
            await asyncio.sleep(min(max(backoff_s, outcome.wait_s), MAX_WAIT_S))
            call.retries += 1
            outcome = await self._attempt(transport, request)
        if isinstance(outcome, Scores):
            return outcome
        attempts = f" ({self._retries + 1} attempts)" if outcome.retry and self._retries else ""
        message = f"reward server {self.address}: {outcome.text}{attempts}"
        call.errors.append(RewardError(message, request.rows, outcome.timed_out))
        failed = (
            Failed("timeouts" if outcome.timed_out else "errors", message)
            if self._on_error == "failed"
            else None
        )
        num_rows = len(request.rows)
        return Scores([failed] * num_rows, {}, {})

    async def _attempt(
        self, transport: httpx2.AsyncHTTPTransport, request: _Request
    ) -> Scores | _Problem:
        """Try once; failures are returned as values, so that no exception carries the request and its headers along."""
        try:
            # httpx limits each read: a server that sends a byte now and then would never be too
            # late.
            async with asyncio.timeout(self._timeout_s):
                response, body = await self._post(transport, request.body)
        except TimeoutError:
            text = f"expected a complete answer within {self._timeout_s:g} s, got none"
            return _Problem(text, retry=True, timed_out=True)
        except (httpx2.RequestError, UnicodeError) as error:
            # UnicodeError: a host that no name service can take.
            reason = f" {self._quoted(str(error))}" if str(error) else ""
            fix = "is `python -m jaxppo.reward_server` running there?"
            return _Problem(
                f"expected an answer, got {type(error).__name__}{reason}; {fix}", retry=True
            )
        status = response.status_code
        if status != 200:
            text = f"expected status 200, got {status} {self._error_in(body)}"
            return _Problem(text, status in RETRY_STATUSES, _retry_after_s(response.headers))
        if body is None:
            return _Problem(
                f"expected an answer of at most {MAX_ANSWER_BYTES} bytes, got a longer one"
            )
        try:
            return read_answer(body, len(request.rows), self._quoted)
        except DataError as error:
            return _Problem(str(error))

    async def _post(
        self, transport: httpx2.AsyncHTTPTransport, body: bytes
    ) -> tuple[httpx2.Response, bytes | None]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        request = httpx2.Request("POST", self._url, headers=headers, content=body)
        response = await transport.handle_async_request(request)
        try:
            return response, await _read(response)
        finally:
            await response.aclose()

    def _error_in(self, body: bytes | None) -> str:
        """Return a server's words in an answer without scores: its "error", or the beginning of the text."""
        text = (body or b"").decode("utf-8", "replace")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return self._quoted(text)
        error = content.get("error") if isinstance(content, dict) else None
        return self._quoted(error if isinstance(error, str) else text)

    def _quoted(self, text: str) -> str:
        """Return a server's words for a one-line message, without our secrets, which it may repeat."""
        # Its page for an unauthorised request may show the header, its error the address.
        credentials = (self._authorization or "").rpartition(" ")[2]
        query_values = [value for _, value in self._url.params.multi_items()]
        for secret in (credentials, self._url.password, self._url.username, *query_values):
            if len(secret) >= MIN_SECRET:
                text = text.replace(secret, REDACTED)
        quoted = ascii(redact(text))
        return quoted if len(quoted) <= MAX_QUOTED else f"{quoted[:MAX_QUOTED]}..."


def _parsed(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError, UnicodeError):
        parsed = httpx2.URL("")
    has_port = parsed.port is None or 0 < parsed.port < 2**16
    if parsed.scheme not in ("http", "https") or not parsed.host or not has_port:
        # What is no address may still hold a secret.
        address = redact(str(url).partition("?")[0])
        example = "an address such as http://127.0.0.1:8000/score"
        raise ConfigError(f"reward server url: expected {example}, got {address!r}")
    return parsed.copy_with(fragment=None)


def _authorization(url: httpx2.URL, token: str | None) -> str | None:
    """Return the header's value: user and password of the url, or the token."""
    if not url.userinfo:
        return None if token is None else f"Bearer {token}"
    # The header has room for one of them, and to leave out either without a word helps nobody.
    require(token is None, "token", "none beside user and password in the url", REDACTED)
    return f"Basic {base64.b64encode(f'{url.username}:{url.password}'.encode()).decode()}"


def _sliced(columns: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: list(values[start:stop]) for name, values in columns.items()}


async def _read(response: httpx2.Response) -> bytes | None:
    """Read the body; None where it is too long."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)


def _retry_after_s(headers: httpx2.Headers) -> float:
    """Return the seconds that a server asks to wait; 0 where it names no number of seconds."""
    # It may also hold a date, whose clock need not be ours.
    value = headers.get("Retry-After", "").strip()
    return float(value) if re.fullmatch(r"\d{1,9}", value, re.ASCII) else 0.0
