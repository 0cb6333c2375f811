"""A Hugging Face hub on 127.0.0.1: what `huggingface_hub` asks for while it downloads a model, and no more.

Served are `/api/models/REPO[/revision/REV]` and `/REPO/resolve/REV/FILE` (HEAD, GET, Range), with the headers and
error codes that huggingface_hub/utils/_http.py and file_download.py read.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

Repos = Mapping[str, Mapping[str, Mapping[str, bytes]]]  # {repo: {revision: {file: content}}}

API = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)(?:/revision/(?P<revision>[^/]+))?")
RESOLVE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubServer:
    """A hub that holds `repos`, as a context manager; revisions with the same files are one commit.

    The attributes may be changed while it runs: `gated` repositories list their files and give none, `status` is
    the answer to everything, `cut` is after how many bytes a file breaks off, `dies` closes the hub with that,
    `delay` is how many seconds it takes to describe a model. `requests` counts "METHOD /path".
    """

    def __init__(self, repos: Repos, *, gated: Collection[str] = ()) -> None:
        self.repos = repos
        self.gated = gated
        self.status: int | None = None
        self.body = b""  # of an answer with `status`
        self.cut: int | None = None
        self.dies = False
        self.delay = 0.0
        self.requests: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, repo: str, revision: str = "main") -> str:
        """The commit hash that `revision` of `repo` stands for."""
        if COMMIT.fullmatch(revision):
            return revision
        digest = hashlib.sha1(repo.encode())
        for name, content in sorted(self.repos[repo][revision].items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()

    def files(self, repo: str, revision: str) -> Mapping[str, bytes] | None:
        """The files of `revision` (branch, tag or commit), None if the repository has none of that name."""
        for name, files in self.repos[repo].items():
            if revision in (name, self.commit(repo, name)):
                return files
        return None

    def gets(self) -> int:
        """How many times the bytes of a file were asked for."""
        return sum(count for request, count in self.requests.items() if re.match("GET .*/resolve/", request))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with suppress(ConnectionError):  # the client has gone
                self.route(urlsplit(self.path).path)

        do_HEAD = do_GET  # noqa: N815

        def route(self, raw: str) -> None:
            hub.requests[f"{self.command} {unquote(raw)}"] += 1
            # Matched before it is unquoted: a revision may hold a quoted slash (refs/pr/1).
            if hub.status is not None:
                self.answer(hub.status, hub.body)
            elif match := API.fullmatch(raw):
                self.model(unquote(match["repo"]), unquote(match["revision"] or "main"))
            elif match := RESOLVE.fullmatch(raw):
                self.file(unquote(match["repo"]), unquote(match["revision"]), unquote(match["file"]))
            else:
                self.answer(404)

        def model(self, repo: str, revision: str) -> None:
            time.sleep(hub.delay)
            files = self.known(repo, revision)
            if files is None:
                return
            names = [{"rfilename": name} for name in files]
            info = {"_id": "0", "id": repo, "modelId": repo, "sha": hub.commit(repo, revision), "siblings": names}
            self.answer(200, json.dumps(info | {"private": False, "tags": []}).encode())

        def file(self, repo: str, revision: str, name: str) -> None:
            files = self.known(repo, revision)
            if files is None:
                return
            commit = {"X-Repo-Commit": hub.commit(repo, revision)}
            if repo in hub.gated:
                self.answer(403, error="GatedRepo")
            elif name not in files:
                self.answer(404, error="EntryNotFound", headers=commit)
            else:
                self.content(files[name], commit)

        def known(self, repo: str, revision: str) -> Mapping[str, bytes] | None:
            if repo not in hub.repos:
                # What the hub says to a client without a token, also of private repositories.
                self.answer(401, b'{"error":"Invalid username or password."}', error="RepoNotFound")
                return None
            files = hub.files(repo, revision)
            if files is None:
                self.answer(404, error="RevisionNotFound")
            return files

        def content(self, body: bytes, headers: dict[str, str]) -> None:
            etag = hashlib.sha256(body).hexdigest()
            headers |= {"ETag": f'"{etag}"', "X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(body))}
            start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if start is None:
                self.answer(200, body, headers=headers)
                return
            first = int(start[1])
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            self.answer(206, body[first:], headers=headers)

        def answer(
            self, status: int, body: bytes = b"", *, error: str | None = None, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            if error is not None:
                self.send_header("X-Error-Code", error)
                self.send_header("X-Error-Message", error)
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cut is not None and len(body) > hub.cut and "/resolve/" in self.path:
                self.wfile.write(body[: hub.cut])
                self.close_connection = True
                if hub.dies:
                    hub.close()
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
