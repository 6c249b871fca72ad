"""A headless Chromium for tests, spoken to over its DevTools pipe: no port, no driver, no network."""

import base64
import fcntl
import io
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_TIMEOUT_S = 60.0
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe --no-first-run "
    "--disable-dev-shm-usage --disable-background-networking --disable-component-update --disable-extensions "
    "--disable-renderer-backgrounding --disable-background-timer-throttling --disable-backgrounding-occluded-windows"
)


class Browser:
    """One window; `problems` collects what its console, its log and its exceptions say, and requests that it makes."""

    def __init__(self, profile: Path, width: int = 1100, height: int = 900):
        assert CHROMIUM is not None
        # Chromium reads commands from descriptor 3 and answers on 4, each message ended by a NUL.
        theirs_in, self._commands = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        self._answers, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())
        flags = [*_FLAGS.split(), f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(self._answers, False)
        self._buffer, self._number, self._session = b"", 0, None
        self.problems: list[str] = []
        self.requests: list[str] = []
        pages = self._call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{part}.enable")

    def open(self, url: str) -> None:
        """Load another page; its script may change the fragment."""
        self._call("Page.navigate", url=url)
        end = time.monotonic() + _TIMEOUT_S
        while self.run("document.readyState + location.href.split('#')[0]") != f"complete{url.split('#')[0]}":
            assert time.monotonic() < end, f"{url} did not load"
            time.sleep(0.02)

    def open_afresh(self, url: str, width: int = 1100, dark: bool = False) -> None:
        """Load a page into a window of the usual size, with nothing wrong with it yet."""
        self.resize(width, 900, dark)
        self.open("about:blank")
        self.problems.clear()
        self.requests.clear()
        self.open(url)

    def move_to(self, fragment: str) -> None:
        """Move to another fragment of the page, and wait until its script knows."""
        listen = "addEventListener('hashchange', done, {once: true})"
        self.run(f"new Promise(done => {{ {listen}; location.hash = {json.dumps(fragment)} }}).then(() => 1)")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, or what it promises, as JSON has it."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of an element, as it is shown."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def move_pointer(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
        x, y = self.run(box + " return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key such as ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """Another window, and another preference of colours."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, name: str) -> np.ndarray:
        """The pixels of the window, int (height, width, 3), which the folder JAXPPO_SCREENSHOTS keeps."""
        png = base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])
        if kept := os.environ.get("JAXPPO_SCREENSHOTS"):
            Path(kept).mkdir(parents=True, exist_ok=True)
            (Path(kept) / f"{name}.png").write_bytes(png)
        with Image.open(io.BytesIO(png)) as image:
            return np.asarray(image.convert("RGB")).astype(int)

    def close(self) -> None:
        """End the browser."""
        try:
            self._session = None
            self._send("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def _send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return self._number

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, **params)
        while True:
            message = self._next_message()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(params)[:500])

    def _next_message(self) -> dict[str, Any]:
        end = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._buffer:
            assert time.monotonic() < end and self._process.poll() is None, "chromium does not answer"
            try:
                self._buffer += os.read(self._answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.005)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
