"""Reward servers on loopback: ours in a thread, one whose answers a test writes, and plain requests to them."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from jaxppo import reward_server

TOKEN = "tk-3x4mpl3.of/a+token=="
PATIENCE_S = 60.0
"""For what comes at once unless the machine is busy or something is broken."""

DIRECT = {"trust_env": False, "verify": False}
"""Options of a request: no proxies, and no time spent on certificates."""


def length(completions: list[str], **columns: Any) -> list[float]:
    """Reward each completion with its number of characters."""
    return [float(len(text)) for text in completions]


@contextlib.contextmanager
def running(reward: Callable[..., Any], **options: Any) -> Iterator[str]:
    """Serve a function by our application on a free port, in a thread; gives its address."""
    server = reward_server.make_server(reward_server.make_app(reward, **options), stop_timeout_s=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


def post(url: str, body: Any, headers: dict[str, Any] | None = None, **options: Any) -> httpx2.Response:
    """Send a body, as JSON unless it is bytes already."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (headers or {})
    return httpx2.post(url, content=content, headers=headers, **{"timeout": PATIENCE_S} | DIRECT | options)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def connected(url: str) -> socket.socket:
    """A connection to a server, to send bytes on."""
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=PATIENCE_S)


class Script:
    """A server on a thread, whose answers are given by a function of the requests so far.

    Args:
        answer: from the number of a request, counted from 1, and its content to status, content and maybe headers.
    """

    def __init__(self, answer: Callable[[int, Any], tuple]):
        self.requests: list[tuple[dict[str, str], str, Any]] = []
        self._lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
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
                with contextlib.suppress(OSError):  # a client may have given up
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/score"

    @property
    def bodies(self) -> list[Any]:
        """The content of each request."""
        return [body for _, _, body in self.requests]

    def __enter__(self) -> "Script":
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
