"""A small Hugging Face hub on this machine: the calls that pushing and pulling take, as huggingface_hub makes them."""

import base64
import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub
import pytest

TOKEN = "hf_" + "n0tF0rAny1sEyes" * 2
USER = "me"
LARGE = ("*.safetensors", "*.parquet")
"""Files that go through large file storage, by name."""


@dataclasses.dataclass
class Repo:
    """A repository with one branch."""

    private: bool
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    commits: list[list[str]] = dataclasses.field(default_factory=list)  # changed files of each

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((len(self.commits), sorted(self.files.items()))).encode()).hexdigest()


class Hub:
    """What the server holds, was asked, and refuses.

    Attributes:
        repos: by "models/user/name" or "datasets/user/name".
        stored: large files by their SHA-256.
        asked: requests as "METHOD path".
        unknown: requests that this hub does not know.
        refuse: pattern of such a request to the status and message of the answer.
    """

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, Repo] = {}
        self.stored: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.unknown: list[str] = []
        self.refuse: dict[str, tuple[int, str]] = {}


class Refused(Exception):
    """An answer that is not 200: status, message, and what else it says."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        asked = f"{self.command} {path}"
        self.hub.asked.append(asked)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            for pattern, (status, message) in self.hub.refuse.items():
                if re.fullmatch(pattern, asked):
                    raise Refused(status, message)
            if "/stored/" not in path and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Invalid username or password.")
            for pattern, answer in _ROUTES:
                if match := re.fullmatch(pattern, asked):
                    return self._send(200, *answer(self.hub, body, **match.groupdict()))
            self.hub.unknown.append(asked)
            raise Refused(404, "no such call")
        except Refused as error:
            status, message, *more = error.args
            self._send(status, {"error": message, **dict(*more)}, {"X-Error-Message": message})

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _send(self, status: int, content: bytes | dict | list, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _whoami(hub: Hub, body: bytes):
    return ({"type": "user", "name": USER, "fullname": "Me", "auth": {"type": "access_token"}},)


def _create(hub: Hub, body: bytes):
    asked = json.loads(body)
    key = f"{asked['type']}s/{asked['organization'] or USER}/{asked['name']}"
    if not key.split("/")[1].startswith(USER):
        raise Refused(403, "You don't have the rights to create a model under this namespace")
    place = {"url": f"{hub.url}/{key.removeprefix('models/')}"}
    if key in hub.repos:
        raise Refused(409, "You already created this repo", place)
    hub.repos[key] = Repo(private=asked.get("visibility") == "private" or asked.get("private") is True)
    return (place,)


def _repo(hub: Hub, kind: str, repo: str) -> Repo:
    if f"{kind}/{repo}" not in hub.repos:
        raise Refused(404, "Repository not found")
    return hub.repos[f"{kind}/{repo}"]


def _info(hub: Hub, body: bytes, kind: str, repo: str):
    found = _repo(hub, kind, repo)
    siblings = [{"rfilename": name} for name in found.files]
    return ({"id": repo, "sha": found.sha, "private": found.private, "siblings": siblings},)


def _tree(hub: Hub, body: bytes, kind: str, repo: str):
    files = _repo(hub, kind, repo).files
    return ([{"type": "file", "path": name, "size": len(data), "oid": _oid(data)} for name, data in files.items()],)


def _preupload(hub: Hub, body: bytes, kind: str, repo: str):
    _repo(hub, kind, repo)
    names = [file["path"] for file in json.loads(body)["files"]]
    mode = {name: "lfs" if any(fnmatch(name, large) for large in LARGE) else "regular" for name in names}
    return ({"files": [{"path": name, "uploadMode": mode[name], "shouldIgnore": False} for name in names]},)


def _batch(hub: Hub, body: bytes):
    objects = []
    for entry in json.loads(body)["objects"]:
        actions = {"upload": {"href": f"{hub.url}/stored/{entry['oid']}"}}
        objects.append(entry | ({} if entry["oid"] in hub.stored else {"actions": actions}))
    return ({"transfer": "basic", "objects": objects},)


def _store(hub: Hub, body: bytes, oid: str):
    if hashlib.sha256(body).hexdigest() != oid:
        raise Refused(400, "other bytes than those announced")
    hub.stored[oid] = body
    return (b"",)


def _commit(hub: Hub, body: bytes, kind: str, repo: str):
    found = _repo(hub, kind, repo)
    header, *operations = [json.loads(line) for line in body.splitlines()]
    assert header["key"] == "header" and header["value"]["summary"]
    files = dict(found.files)
    for operation in operations:
        value = operation["value"]
        if operation["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif operation["key"] == "lfsFile":
            files[value["path"]] = hub.stored[value["oid"]]
        else:
            assert operation["key"] == "deletedFile"
            del files[value["path"]]
    found.files = files
    found.commits.append([operation["value"]["path"] for operation in operations])
    return ({"success": True, "commitOid": found.sha, "commitUrl": f"{hub.url}/{repo}/commit/{found.sha}"},)


def _resolve(hub: Hub, body: bytes, repo: str, name: str, kind: str | None = None):
    found = _repo(hub, kind or "models", repo)
    if name not in found.files:
        raise Refused(404, "Entry not found")
    data = found.files[name]
    return data, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": found.sha}


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


_REPO = r"(?P<kind>models|datasets)/(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES = [
    (r"GET /api/whoami-v2", _whoami),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", lambda hub, body: ({"errors": [], "warnings": []},)),
    (rf"GET /api/{_REPO}(/revision/\w+)?", _info),
    (rf"GET /api/{_REPO}/tree/\w+", _tree),
    (rf"POST /api/{_REPO}/preupload/main", _preupload),
    (r"POST /(datasets/)?[\w.-]+/[\w.-]+\.git/info/lfs/objects/batch", _batch),
    (r"PUT /stored/(?P<oid>\w+)", _store),
    (rf"POST /api/{_REPO}/commit/main", _commit),
    (r"(GET|HEAD) /((?P<kind>datasets)/)?(?P<repo>[\w.-]+/[\w.-]+)/resolve/\w+/(?P<name>.+)", _resolve),
]


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub on a free port."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def variables(hub: Hub, home: str) -> dict[str, str]:
    """Environment of a process that uses a hub: HF_ENDPOINT, the token, and HTTP as the way of large files."""
    names = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
    return names | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}


@contextmanager
def used(hub: Hub, home: str) -> Iterator[None]:
    """Have this process use a hub, as `variables` would have another one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(hub, home).items():
            patch.setenv(name, value)
        constants = "huggingface_hub.constants."
        patch.setattr(f"{constants}ENDPOINT", hub.url)
        patch.setattr(f"{constants}HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(f"{constants}HF_HUB_CACHE", f"{home}/hub")
        patch.setattr(f"{constants}HF_TOKEN_PATH", f"{home}/token")
        patch.setattr(f"{constants}HF_HUB_OFFLINE", False)
        patch.setattr(f"{constants}HF_HUB_DISABLE_XET", True)
        huggingface_hub.close_session()
        yield
        huggingface_hub.close_session()
