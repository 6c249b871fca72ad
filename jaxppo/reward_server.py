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
    read_request,
)
from jaxppo.reward_functions.registry import Context, check, make_rewards, text_reward_model_loader
from jaxppo.rewards import Failed, call, function_name, missing_column
from jaxppo.run import cli
from jaxppo.run.console import sanitize
from jaxppo.run.jsonl import to_plain_json

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

CLIENT_TIMEOUT_S = 60
"""Longest time that a client may take to send a request, or to read on in an answer."""

HEADER_TIMEOUT_S = 10
"""Longest time for headers; connections are looked at as often, so that both limits may be exceeded by as much."""

MAX_WAITING = 32
"""Requests that may wait beside those worked on; one more is answered 503."""

MAX_BODY_BYTES = 64 * 2**20
"""Longest request."""

MAX_CONNECTIONS = 256
"""Connections at a time; a request on a further one is answered 503."""

STOP_TIMEOUT_S = 20
"""Longest time that requests get to be finished after SIGTERM or Ctrl-C."""

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """A request that is answered with an error; its attributes have the names of starlette's `HTTPException`.

    Args:
        status_code: HTTP status.
        detail: what the client reads.
        headers: of the answer.
    """

    def __init__(self, status_code: int, detail: str, headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status_code = status_code
        self.detail = detail
        self.headers = headers


def answer(reward: Callable[..., Any], body: bytes | bytearray) -> bytes:
    """Answer the body of a request: scores, and the metrics and extras that the function reported.

    Raises:
        Refusal: 400 for what is no JSON, 422 for a wrong form or a missing column, 500 for a function that fails or
            returns something else than one finite number or None per completion.
    """
    try:
        completions = read_request(body)
    except DataError as error:
        raise Refusal(422, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"body: expected JSON, got: {redact(str(error))}") from None
    if not completions.texts:
        return dumps({"scores": []})
    name = function_name(reward)
    column = missing_column(reward, completions.columns)
    if column is not None:
        available = ", ".join(sorted(completions.columns)) or "none"
        raise Refusal(422, f"reward {name}: expected a column {column!r}, got {available}")
    try:
        scores = call(name, reward, completions)
        for row, score in enumerate(scores.values):
            if isinstance(score, Failed):
                raise DataError(
                    f"expected a finite number or None for row {row}, got {score.reason}"
                )
        # JSON has no NaN and no infinity, which a metric may be: `to_plain_json` makes them None.
        content = {
            "scores": scores.values,
            "metrics": to_plain_json(scores.metrics),
            "extras": scores.extras,
        }
        return dumps(content)
    except Exception as error:
        # What a user's function raises is answered; where it stands is for the operator alone.
        _log.error("%s", "\n".join(map(sanitize, redact(traceback.format_exc()).splitlines())))
        raise Refusal(500, f"reward {name}: {type(error).__name__}: {redact(str(error))}") from None


class _Endpoint:
    """Who may ask, how much, and in which order."""

    def __init__(self, reward: Callable[..., Any], token: str | None, workers: int):
        self._reward = reward
        self._token = token
        self._max_requests = workers + MAX_WAITING
        self._num_requests = 0
        self._turns = asyncio.Semaphore(workers)

    async def health(self, _: "Request") -> "Response":
        """Answer that the server is up, also while rewards are computed, and without a token."""
        return _json_response(200, dumps({"status": "ok", "reward": function_name(self._reward)}))

    async def score(self, request: "Request") -> "Response":
        """Answer a request for scores."""
        self._check_sender(request)
        if self._num_requests >= self._max_requests:
            raise Refusal(
                503, f"busy: {self._num_requests} requests are waiting", {"Retry-After": "1"}
            )
        # Counted before its body is read, since the bodies of
        # these requests are what the server has in memory.
        self._num_requests += 1
        try:
            body = await self._read(request)
            return _json_response(200, await self._compute(request, body))
        finally:
            self._num_requests -= 1

    def _check_sender(self, request: "Request") -> None:
        if self._token is None:
            # A web page can ask through this machine's browser, under another name of the machine.
            if not is_loopback(_requested_host(request)):
                raise Refusal(
                    403, f"host: expected a loopback address where {TOKEN_VARIABLE} is not set"
                )
        else:
            # In constant time, so that a wrong token does not tell how much of it is right.
            authorization = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(authorization, f"Bearer {self._token}".encode()):
                raise Refusal(
                    401,
                    "authorization: expected the server's bearer token",
                    {"WWW-Authenticate": "Bearer"},
                )
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # Web pages cannot send JSON to another site without its consent.
        if content_type != "application/json":
            raise Refusal(415, "content-type: expected application/json")

    async def _read(self, request: "Request") -> bytearray:
        """Read the body; after a refusal, uvicorn drops what still comes, so that its sender can read the answer."""
        from starlette.requests import ClientDisconnect

        body = bytearray()
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                async for part in request.stream():
                    body += part
                    # starlette's own limit answers in plain text, without the number.
                    if len(body) > MAX_BODY_BYTES:
                        rule = f"at most {MAX_BODY_BYTES} bytes"
                        raise Refusal(413, f"body: expected {rule}, got a longer one")
        except TimeoutError:
            raise Refusal(408, f"body: expected all of it within {CLIENT_TIMEOUT_S:g} s") from None
        except ClientDisconnect:
            raise Refusal(400, "the client went away") from None
        return body

    async def _compute(self, request: "Request", body: bytearray) -> bytes:
        """Call the function when it is the request's turn; one whose client has left gives its place to others."""
        turn = asyncio.ensure_future(self._turns.acquire())
        # After the body, nothing else can come.
        disconnect = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({turn, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if disconnect.done():
                raise Refusal(400, "the client went away")
            return await _in_daemon_thread(lambda: answer(self._reward, body))
        finally:
            disconnect.cancel()
            if not turn.cancel():
                self._turns.release()


async def _in_daemon_thread(function: Callable[[], bytes]) -> bytes:
    """Run in a thread that does not keep the process alive, as an executor's would while a reward function hangs."""
    future: Future[bytes] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="reward", daemon=True).start()
    return await asyncio.wrap_future(future)


def _requested_host(request: "Request") -> str:
    """Return the name that a request was sent to; starlette would put the server's own for one that it cannot read."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _json_response(
    status_code: int, body: bytes, headers: Mapping[str, str] | None = None
) -> "Response":
    from starlette.responses import Response

    return Response(body, status_code, headers, "application/json")


async def _refuse(_: "Request", error: Any) -> "Response":
    """Answer a refused request, or one for an unknown path or method."""
    return _json_response(error.status_code, dumps({"error": error.detail}), error.headers)


def make_app(
    reward: Callable[..., Any], *, token: str | None = None, workers: int = 1
) -> "Starlette":
    """Make the ASGI application: POST / and /score, GET /health.

    Args:
        reward: the function, in TRL's convention; called in a thread.
        token: bearer token that /score asks for. Without one, only requests to a loopback address are answered.
        workers: calls of the function at a time; above 1 it has to be safe for threads.

    Raises:
        ConfigError: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise _missing(error) from None
    endpoint = _Endpoint(reward, token, workers)
    routes = [
        Route("/", endpoint.score, methods=["POST"]),
        Route("/score", endpoint.score, methods=["POST"]),
        Route("/health", endpoint.health, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={Refusal: _refuse, HTTPException: _refuse})
    # A redirect would be an answer without an error in JSON.
    app.router.redirect_slashes = False
    return app


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"reward server: expected {error.name} to be installed: pip install 'jaxppo[server]'"
    )


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
    token = environment_token()
    if token is None and not is_loopback(config.host):
        raise ConfigError(
            f"host: expected a loopback address without {TOKEN_VARIABLE} set, got {config.host!r}"
        )
    server = make_server(make_app(reward, token=token, workers=config.workers))
    # uvicorn would end the process where the address is not free, and print the port in its log.
    with _listen(config.host, config.port) as listener:
        _stop_by_signal(server)
        print(f"reward {function_name(reward)} on {_address(listener)}", flush=True)
        server.run([listener])


def make_server(app: "Starlette", stop_timeout_s: int | None = None) -> "uvicorn.Server":
    """Make the server of an application: uvicorn with our limits.

    Args:
        app: the application.
        stop_timeout_s: longest time that requests get to be finished; default: `STOP_TIMEOUT_S`.

    Raises:
        ConfigError: uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise _missing(error) from None
    config = uvicorn.Config(
        app,
        # Also where httptools is installed, so that limits and messages are the same everywhere.
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=STOP_TIMEOUT_S if stop_timeout_s is None else stop_timeout_s,
        timeout_notify=HEADER_TIMEOUT_S,
    )
    server = uvicorn.Server(config)
    config.callback_notify = _StalledConnections(server.server_state.connections).close
    return server


class _StalledConnections:
    """Closes connections whose clients neither go on with their headers nor read on.

    uvicorn has no limit for either: a client that has sent half a header, or that does not read its answer, would keep
    its connection, and after `MAX_CONNECTIONS` of them nobody else would be answered. uvicorn calls `close` every
    `HEADER_TIMEOUT_S`; whatever a connection waits for has a limit by how long it has been the same.

    Args:
        connections: of the server, which changes them.
    """

    def __init__(self, connections: set[Any]):
        self._connections = connections
        self._waiting_s: dict[tuple[Any, Any, int], int] = {}

    async def close(self) -> None:
        """Close those that have waited for too long."""
        waiting_s = {}
        for connection in self._connections:
            request = connection.cycle
            # A request that is being read or scored has limits of its own.
            if request is None or request.response_complete or connection.flow.write_paused:
                # The unsent bytes of an answer are fewer than before if the client is only slow.
                unsent_bytes = connection.transport.get_write_buffer_size()
                state = (connection, request, unsent_bytes)
                waiting_s[state] = self._waiting_s.get(state, -HEADER_TIMEOUT_S) + HEADER_TIMEOUT_S
                if waiting_s[state] >= (CLIENT_TIMEOUT_S if unsent_bytes else HEADER_TIMEOUT_S):
                    connection.transport.abort()
        self._waiting_s = waiting_s


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        # UnicodeError: for what can be no name of a machine.
        raise ConfigError(
            f"host, port: expected a free address, got {host}:{port} ({first_line(error)})"
        ) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _stop_by_signal(server: "uvicorn.Server") -> None:
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
    (reward,) = make_rewards(config.reward, Context(load_model, config.validator)).rewards
    return reward.function


def _command(config: RewardServerConfig) -> None:
    serve(make_function(config), config)


if __name__ == "__main__":
    cli.main(lambda: _command(parse_cli(RewardServerConfig, "reward_server")))
