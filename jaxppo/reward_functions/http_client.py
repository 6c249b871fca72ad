"""Rewards from a server over HTTP: LLaMA-Factory's `reward_model_type: api`.

Every attempt has a total time limit, is retried where that can help, and its answer is checked before a score is used.
The messages are in `http_contract.py`, a server is `jaxppo/reward_server.py`.
"""

import asyncio
import base64
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import httpx2

from jaxppo.config import require
from jaxppo.config.redact import REDACTED, redact
from jaxppo.errors import ConfigError, DataError, JaxppoError
from jaxppo.reward_functions.http_contract import (
    TOKEN_VARIABLE,
    check_lengths,
    encode_request,
    environment_token,
    read_answer,
)
from jaxppo.rewards import Failed, Scores, join_scores, run_to_end

BATCH_SIZE = 64
"""Most rows of a request."""

MAX_REQUESTS = 4
"""Most requests at a time."""

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""Temporary failures; 500 is not among them, since then the reward function itself failed."""

BACKOFF_S = 0.5
"""Wait before the first retry, doubled before each further one."""

MAX_WAIT_S = 60.0
"""Longest wait before a retry, whatever back-off or `Retry-After` say."""

MAX_QUOTED = 200
"""Most characters of a server's text in a message."""

MIN_SECRET = 4
"""Shorter secrets are not searched for in messages: they would match inside ordinary words."""


class RewardError(JaxppoError):
    """A reward server gave no usable scores for a request."""


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

    One call becomes requests of up to `BATCH_SIZE` rows, up to `MAX_REQUESTS` of them at a time. An attempt takes at
    most `timeout_s` from connecting to the last byte. It is retried (`retries` times, with exponential back-off) after
    a broken or refused connection, a time-out, or status 429, 502, 503 or 504, whose `Retry-After` in seconds is kept
    up to `MAX_WAIT_S`. Redirects are not followed, and proxy settings of the environment are not used: rows and token
    go nowhere but to `url`. A client holds no connection between calls. The bearer token is that of the environment
    variable `JAXPPO_REWARD_TOKEN`.

    Args:
        url: http or https address to post to. With user and password in it, they are sent as basic authentication.
        timeout_s: limit of an attempt as a whole, in seconds.
        retries: attempts after the first.
        on_error: "raise" a `RewardError` for a request that finally failed, or give its rows a `rewards.Failed` with
            the reason ("failed").

    Raises:
        ConfigError: a bad value.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        retries: int = 3,
        on_error: Literal["raise", "failed"] = "raise",
    ):
        require(0 < timeout_s < math.inf, "timeout_s", "a finite number above 0", timeout_s)
        require(retries >= 0, "retries", "an integer of at least 0", retries)
        require(on_error in ("raise", "failed"), "on_error", "raise or failed", on_error)
        # What messages call a reward function by.
        self.__name__ = "reward_server"
        self._url = _parsed(url)
        self._timeout_s = timeout_s
        self._retries = retries
        self._on_error = on_error
        self._authorization = _authorization(self._url)

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
            RewardError: a request failed and on_error is "raise".
            DataError: lengths differ, or a column cannot be written as JSON.
        """
        arguments: dict[str, Any] = {"prompts": prompts, "completions": completions}
        if completion_ids is not None:
            arguments["completion_ids"] = completion_ids
        requests = _requests(arguments, columns)
        # Attempts beyond the first of a request are retries.
        counts = Counter(requests=0, retries=0, failures=0)
        metrics: dict[str, float] = {}
        try:
            scores = join_scores(run_to_end(self._ask_all(requests, counts)))
            failures = [score for score in scores.values if isinstance(score, Failed)]
            if failures and self._on_error == "raise":
                raise RewardError(failures[0].reason)
            metrics = scores.metrics
        finally:
            # Of a failed call, too: a run that stops shows how often its server did not answer.
            if log_metric is not None:
                for name, value in metrics.items():
                    log_metric(name, value)
                for name, count in counts.items():
                    log_metric(f"reward_server/{name}", float(count))
        if log_extra is not None:
            for name, values in scores.extras.items():
                log_extra(name, values)
        return scores.values

    async def _ask_all(self, requests: list[_Request], counts: Counter[str]) -> list[Scores]:
        turns = asyncio.Semaphore(MAX_REQUESTS)
        # The transport below httpx's client: it follows no redirects, uses no proxies and logs no
        # URLs. Its own retries are for connecting alone, and are not counted.
        async with httpx2.AsyncHTTPTransport(verify=self._url.scheme == "https") as transport:

            async def ask(request: _Request) -> Scores:
                async with turns:
                    # Once the call is to raise, nobody would read the scores.
                    if counts["failures"] and self._on_error == "raise":
                        return Scores([], {}, {})
                    return await self._ask(transport, request, counts)

            return await asyncio.gather(*map(ask, requests))

    async def _ask(
        self,
        transport: httpx2.AsyncHTTPTransport,
        request: _Request,
        counts: Counter[str],
    ) -> Scores:
        """Ask until there is an answer; the rows of a request that finally failed have no scores."""
        counts["requests"] += 1
        outcome = await self._attempt(transport, request)
        for retry in range(self._retries):
            if isinstance(outcome, Scores) or not outcome.retry:
                break
            await asyncio.sleep(min(max(BACKOFF_S * 2**retry, outcome.wait_s), MAX_WAIT_S))
            counts["retries"] += 1
            outcome = await self._attempt(transport, request)
        if isinstance(outcome, Scores):
            return outcome
        counts["failures"] += 1
        attempts = f" ({self._retries + 1} attempts)" if outcome.retry and self._retries else ""
        message = f"reward server {self.address}: {outcome.text}{attempts}"
        failed = Failed("timeouts" if outcome.timed_out else "errors", message)
        return Scores([failed] * len(request.rows), {}, {})

    async def _attempt(
        self, transport: httpx2.AsyncHTTPTransport, request: _Request
    ) -> Scores | _Problem:
        """Try once; failures are returned as values, so that no exception carries the request and its headers along."""
        try:
            # httpx limits each read alone, which a byte now and then would always be in time for.
            async with asyncio.timeout(self._timeout_s):
                response = await self._post(transport, request.body)
        except TimeoutError:
            text = f"expected a complete answer within {self._timeout_s:g} s, got none"
            return _Problem(text, retry=True, timed_out=True)
        except (httpx2.RequestError, UnicodeError) as error:
            # UnicodeError: a host that no name service can take.
            reason = f"{type(error).__name__} {self._quoted(str(error))}"
            fix = "is `python -m jaxppo.reward_server` running there?"
            return _Problem(f"expected an answer, got {reason}; {fix}", retry=True)
        status = response.status_code
        if status != 200:
            text = self._quoted(response.content.decode("utf-8", "replace"))
            return _Problem(
                f"expected status 200, got {status} {text}",
                status in RETRY_STATUSES,
                _retry_after_s(response.headers),
            )
        try:
            return read_answer(response.content, len(request.rows), self._quoted)
        except DataError as error:
            return _Problem(str(error))

    async def _post(self, transport: httpx2.AsyncHTTPTransport, body: bytes) -> httpx2.Response:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        request = httpx2.Request("POST", self._url, headers=headers, content=body)
        response = await transport.handle_async_request(request)
        try:
            await response.aread()
            return response
        finally:
            await response.aclose()

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
        raise ConfigError(f"reward server: expected {example}, got {address!r}")
    return parsed.copy_with(fragment=None)


def _authorization(url: httpx2.URL) -> str | None:
    """Return the header's value: user and password of the url, or the token."""
    token = environment_token()
    if not url.userinfo:
        return None if token is None else f"Bearer {token}"
    # The header has room for one of them, and to leave out either without a word helps nobody.
    require(token is None, TOKEN_VARIABLE, "not set beside a password in the url", REDACTED)
    return f"Basic {base64.b64encode(f'{url.username}:{url.password}'.encode()).decode()}"


def _requests(arguments: dict[str, Any], columns: dict[str, Any]) -> list[_Request]:
    """Encode all requests before the first is sent, so that a value that JSON cannot hold costs none."""
    prompts = arguments["prompts"]
    check_lengths(arguments | columns, len(prompts))
    texts = [prompt + text for prompt, text in zip(prompts, arguments["completions"], strict=True)]
    requests = []
    for start in range(0, len(texts), BATCH_SIZE):
        rows = range(start, min(start + BATCH_SIZE, len(texts)))
        content = {
            "model": "model",  # LLaMA-Factory's servers expect the key
            "messages": texts[start : rows.stop],
            **_sliced(arguments, rows),
            "columns": _sliced(columns, rows),
        }
        requests.append(_Request(rows, encode_request(content)))
    return requests


def _sliced(columns: dict[str, Any], rows: range) -> dict[str, Any]:
    return {name: list(values[rows.start : rows.stop]) for name, values in columns.items()}


def _retry_after_s(headers: httpx2.Headers) -> float:
    """Return the seconds that a server asks to wait; 0 where it names no number of seconds."""
    value = headers.get("Retry-After", "").strip()
    # It may also hold a date, whose clock need not be ours.
    return float(value) if value.isdecimal() else 0.0
