"""A server that speaks as much of the hub's API as a download needs, and breaks it in the ways hubs do."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote, urlsplit

from httpserver import Handler, running

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`files` of the one repository it has, as they are served; `promised` overrides what is said of one.

    `drop_every`: a connection breaks after so many bytes. `ranges`: whether a range is honoured. `silent`:
    every answer hangs until the server ends. `body`: what is sent instead of a file. `pause_s`:
    between two pieces.
    """

    def __init__(self, repo: str = "owner/model-GGUF") -> None:
        self.repo = repo
        self.files: dict[str, bytes] = {}
        self.promised: dict[str, bytes] = {}
        self.drop_every = 0
        self.ranges = True
        self.silent = False
        self.body: bytes | None = None
        self.pause_s = 0.0
        self.status = 0
        self.asked: list[tuple[str, str]] = []  # path and range of every request for a file
        self.over = threading.Event()
        self.url = ""

    def listing(self) -> bytes:
        siblings = [{"rfilename": "README.md", "size": 3, "blobId": "0" * 40}]
        for name, served in self.files.items():
            data = self.promised.get(name, served)
            lfs = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}
            siblings.append({"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs})
        about = {"_id": "1", "id": self.repo, "modelId": self.repo, "sha": REVISION, "siblings": siblings}
        return json.dumps({**about, "private": False, "tags": [], "downloads": 0, "likes": 0}).encode()


class _Handler(Handler):
    hub: Hub

    def answer(self, _: bytes) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        if hub.silent:
            hub.over.wait(60)
            self.close_connection = True
        elif path == f"/api/models/{hub.repo}":
            self._send(200, hub.listing(), {"Content-Type": "application/json"})
        elif path.startswith(f"/{hub.repo}/resolve/{REVISION}/"):
            # The hub keeps large files elsewhere.
            self._send(302, b"", {"Location": "/store/" + path.split("/", 5)[5]})
        elif path.startswith("/store/") and path.removeprefix("/store/") in hub.files:
            self._file(path.removeprefix("/store/"))
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, name: str) -> None:
        hub, wish = self.hub, self.headers.get("Range", "")
        hub.asked.append((name, wish))
        if hub.status:
            self._send(hub.status, b"", {})
            return
        data, begin = hub.files[name] if hub.body is None else hub.body, 0
        if hub.ranges and (match := re.fullmatch(r"bytes=(\d+)-", wish)):
            begin = int(match[1])
            if begin >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
        headers = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
        self._send(206 if begin else 200, data[begin:], {"ETag": '"of the store"', **headers})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_head(status, {**headers, "Content-Length": len(body)})
        if self.command == "HEAD":
            return
        hub, sent = self.hub, 0
        large = len(body) > 1 << 16
        with suppress(ConnectionError):
            for at in range(0, len(body), 1 << 16):
                if large and hub.drop_every and sent >= hub.drop_every:
                    self.close_connection = True
                    return
                self.wfile.write(body[at : at + (1 << 16)])
                sent += 1 << 16
                if large and hub.pause_s:
                    time.sleep(hub.pause_s)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    with running(_Handler, hub.over, hub=hub) as hub.url:
        yield hub
