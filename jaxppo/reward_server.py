"""Serve a reward function over HTTP, so that runs on other machines can use it.

`python -m jaxppo.reward_server --reward_funcs plan` serves `reward_functions/http_client.py` and LLaMA-Factory; the
contract is in `docs/reward_server.md`.
"""

import asyncio
import hmac
import ipaddress
import logging
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jaxppo.config import RewardServerConfig
from jaxppo.config.redact import redact
from jaxppo.config.sources import parse_cli
from jaxppo.errors import ConfigError, DataError, first_line
from jaxppo.parallel.devices import DataParallel
from jaxppo.reward_functions.http_contract import (
    TOKEN_VARIABLE,
    dumps,
    environment_token,
    is_finite,
    read_request,
)
from jaxppo.reward_functions.registry import Context, check, make_rewards, text_reward_model_loader
from jaxppo.rewards import Completions, Failed, call, missing_column, name_of
from jaxppo.run import cli
from jaxppo.run.console import sanitize

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

BODY_TIMEOUT_S = 60.0
"""Longest time that a client may take to send a request, or to read on in an answer."""

LOOK_AGAIN_S = 1.0
"""How often it is asked whether the client of a waiting request is still there."""

HEADER_TIMEOUT_S = 10.0
"""Longest time that a connection may take for the headers of a request, the first or another one."""

MAX_CONNECTIONS = 256
"""Connections at a time; a further one is closed at once."""

STOP_TIMEOUT_S = 20.0
"""Longest time that requests get to be finished after SIGTERM or Ctrl-C."""

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: what the client is told.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers


def answer(reward: Callable[..., Any], body: bytes | bytearray) -> bytes:
    """Answer the body of a request: scores, and the metrics and extras that the function reported.

    Raises:
        Refusal: 400 for what is no JSON, 422 for a wrong form or a missing column, 500 for a function that fails or
            returns something else than one finite number or None per completion.
    """
    try:
        batch = read_request(body)
    except DataError as error:
        raise Refusal(422, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"body: expected JSON, got: {redact(str(error))}") from None
    if not batch.completions:
        return dumps({"scores": []})
    if (needed := missing_column(reward, batch.columns)) is not None:
        got = ", ".join(sorted(batch.columns)) or "none"
        raise Refusal(422, f"reward {name_of(reward)}: expected a column {needed!r}, got {got}")
    completions = Completions(batch.prompts, batch.completions, batch.completion_ids, batch.columns)
    try:
        scores = call(name_of(reward), reward, completions)
        for row, score in enumerate(scores.values):
            if isinstance(score, Failed):
                raise DataError(f"expected a finite number or None for row {row}, got {score.reason}")
        # JSON has no NaN and no infinity.
        metrics = {name: value if is_finite(value) else None for name, value in scores.metrics.items()}
        parts = {} if scores.parts is None else {"parts": [parts or None for parts in scores.parts]}
        return dumps({"scores": scores.values, "metrics": metrics, "extras": scores.extras} | parts)
    except Exception as error:  # whatever a user's function raises is an answer to the client
        _log.error("%s", "\n".join(map(sanitize, redact(traceback.format_exc()).splitlines())))
        raise Refusal(500, f"reward {name_of(reward)}: {type(error).__name__}: {redact(str(error))}") from None


class _Endpoint:
    """Who may ask, how much, and in which order."""

    def __init__(
        self, reward: Callable[..., Any], token: str | None, workers: int, max_body_mib: float, max_waiting: int
    ):
        self._reward, self._token = reward, token
        self._max_bytes, self._max_waiting = int(max_body_mib * 2**20), max_waiting
        self._workers, self._turns, self._inside = workers, asyncio.Semaphore(workers), 0

    async def health(self, _: "Request") -> "Response":
        """Answer that the server is up, also while rewards are computed, and without a token."""
        return _response(200, dumps({"status": "ok", "reward": name_of(self._reward)}))

    async def score(self, request: "Request") -> "Response":
        """Answer a request for scores."""
        refusal = self._admission(request)
        if refusal is not None:
            await _body(request, 0)  # read too: a client that is still sending would not see the answer
            raise refusal
        self._inside += 1  # before its body is read: those inside are what the server has in memory
        try:
            body, size = await _body(request, self._max_bytes)
            if size > self._max_bytes:
                raise Refusal(413, f"body: expected at most {self._max_bytes} bytes, got {size}")
            return _response(200, await self._in_turn(request, body))
        finally:
            self._inside -= 1

    def _admission(self, request: "Request") -> Refusal | None:
        if self._token is None:
            # Web pages can ask a server on this machine through the browser, under another name of it.
            if not is_loopback(_host_of(request)):
                return Refusal(403, f"host: expected a loopback address where {TOKEN_VARIABLE} is not set")
        else:
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                return Refusal(401, "authorization: expected the server's bearer token", {"WWW-Authenticate": "Bearer"})
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which web pages cannot send to another site without its consent
            return Refusal(415, "content-type: expected application/json")
        if self._inside >= self._workers + self._max_waiting:
            return Refusal(503, f"busy: {self._inside} requests are waiting", {"Retry-After": "1"})
        return None

    async def _in_turn(self, request: "Request", body: bytearray) -> bytes:
        turn = asyncio.create_task(self._turns.acquire())
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=LOOK_AGAIN_S)
                if await request.is_disconnected():  # others wait for this turn, or for this place in the queue
                    raise Refusal(400, "the client went away")
            return await _in_thread(lambda: answer(self._reward, body))
        finally:
            if not turn.cancel():
                self._turns.release()


def _host_of(request: "Request") -> str:
    """Return the name that a request was sent to; starlette would put the server's own for one that it cannot read."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _body(request: "Request", keep: int) -> tuple[bytearray, int]:
    """Read the body of a request; return it (empty where it is longer than `keep` bytes) and its length."""
    from starlette.requests import ClientDisconnect

    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size <= keep:
                    body += part
                else:
                    body.clear()
    except TimeoutError:
        raise Refusal(408, f"body: expected all of it within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise Refusal(400, "the client went away") from None
    return body, size


async def _in_thread(function: Callable[[], bytes]) -> bytes:
    """Run in a thread that does not keep the process alive: a reward that hangs cannot hold up the end."""
    future: Future[bytes] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="reward", daemon=True).start()
    return await asyncio.wrap_future(future)


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> "Response":
    from starlette.responses import Response

    return Response(body, status, headers, "application/json")


async def _refuse(_: "Request", error: Exception) -> "Response":
    """Answer a refused request, or one for an unknown path or method."""
    status, message = getattr(error, "status_code", 500), getattr(error, "detail", "the server failed")
    if isinstance(error, Refusal):
        status, message = error.status, str(error)
    return _response(status, dumps({"error": message}), getattr(error, "headers", None))


def make_app(
    reward: Callable[..., Any],
    *,
    token: str | None = None,
    workers: int = 1,
    max_body_mib: float = 64,
    max_waiting: int = 32,
) -> "Starlette":
    """Make the ASGI application: POST / and /score, GET /health.

    Args:
        reward: the function, in TRL's convention; called in a thread.
        token: bearer token that /score asks for. Without one, only requests to a loopback address are answered.
        workers: calls of the function at a time; above 1 it has to be safe for threads.
        max_body_mib: longest request, in MiB.
        max_waiting: requests beyond those being worked on; one more is answered 503.

    Raises:
        ConfigError: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise _missing(error) from None
    endpoint = _Endpoint(reward, token, workers, max_body_mib, max_waiting)
    routes = [Route(path, endpoint.score, methods=["POST"]) for path in ("/", "/score")]
    routes.append(Route("/health", endpoint.health, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={Refusal: _refuse, HTTPException: _refuse})
    app.router.redirect_slashes = False  # an answer without words
    return app


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(f"reward server: expected {error.name} to be installed: pip install 'jaxppo[server]'")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can ask under this name or address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def serve(reward: Callable[..., Any], config: RewardServerConfig) -> None:
    """Serve a reward function until SIGTERM or Ctrl-C, which lets requests at work be finished.

    The bearer token is that of the environment variable `JAXPPO_REWARD_TOKEN`.

    Args:
        reward: the function, in TRL's convention.
        config: where, and how much.

    Raises:
        ConfigError: starlette or uvicorn are not installed, the address is not free, or it can be reached from other
            machines and there is no token.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise _missing(error) from None
    token = environment_token()
    if token is None and not is_loopback(config.host):
        raise ConfigError(f"host: expected a loopback address without {TOKEN_VARIABLE} set, got {config.host!r}")
    app = make_app(
        reward, token=token, workers=config.workers, max_body_mib=config.max_body_mib, max_waiting=config.max_waiting
    )
    server = uvicorn.Server(server_config(app))
    with _listening(config.host, config.port) as listener:
        _stop_by_signal(server)
        print(f"reward {name_of(reward)} on {_address(listener)}", flush=True)
        asyncio.run(server.serve(sockets=[listener]))


def server_config(app: "Starlette", stop_timeout_s: float = STOP_TIMEOUT_S) -> Any:
    """Return the settings of uvicorn."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=_protocol(),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(stop_timeout_s),
    )


def _protocol() -> type:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        """HTTP with deadlines for headers and for reading the answers, and a limit of connections."""

        _deadline: asyncio.TimerHandle | None = None
        _limit: float | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > MAX_CONNECTIONS:
                transport.abort()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._set_limit(None)
            super().connection_lost(exc)

        def _watch(self) -> None:
            in_headers = self.cycle is None or self.cycle.response_complete
            self._set_limit(BODY_TIMEOUT_S if self.flow.write_paused else HEADER_TIMEOUT_S if in_headers else None)

        def _set_limit(self, seconds: float | None) -> None:
            if seconds != self._limit:
                if self._deadline is not None:
                    self._deadline.cancel()
                self._limit = seconds
                self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    return Bounded


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # the second for what can be no name
        raise ConfigError(f"host, port: expected a free address, got {host}:{port} ({first_line(error)})") from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stop_by_signal(server: Any) -> None:
    """Ask the server to stop on a signal, also on one that comes before it runs or that it raises again at its end."""

    def stop(signum: int, frame: Any) -> None:
        del signum, frame
        server.should_exit = True

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)


def make_function(config: RewardServerConfig) -> Callable[..., Any]:
    """Make the one function of `reward_funcs`; its weight and its failures are up to the client."""
    check(config.reward, config.validator)
    load_model = text_reward_model_loader(DataParallel())
    (reward,) = make_rewards(config.reward, Context(config.validator, load_model=load_model)).rewards
    return reward.function


def _command(config: RewardServerConfig) -> None:
    serve(make_function(config), config)


if __name__ == "__main__":
    cli.main(lambda: _command(parse_cli(RewardServerConfig, "reward_server")))
