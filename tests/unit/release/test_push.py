"""Uploads, against a local stand-in of the Hub's HTTP API; no real host is asked."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from stamm.base.errors import ConfigError, RunError
from stamm.release.checksums import SUMS
from stamm.release.push import check_repository, push
from stamm.release.verify import verify


class StandIn(ThreadingHTTPServer):
    """Repositories in memory: `files` by name, large ones by hash first.

    refuses   status of every answer, 0: none
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.private: object = None
        self.refuses = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size + 2)[:-2])
        self.rfile.readline()
        return b"".join(parts)

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_GET(self) -> None:
        names = {**self.server.files, ".gitattributes": b""}
        if "/tree/" in self.path:
            entries = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in names]
            self._answer(entries)
        else:
            siblings = [{"rfilename": name} for name in names]
            self._answer({"id": "someone/model", "siblings": siblings, "sha": "0" * 40})

    def do_POST(self) -> None:
        body, server = self._body(), self.server
        if server.refuses:
            self._answer({"error": "no right to write"}, server.refuses)
        elif self.path == "/api/repos/create":
            server.private = json.loads(body)["visibility"]
            self._answer({"url": f"{server.address}/someone/model"})
        elif self.path == "/api/validate-yaml":
            front = json.loads(body)["content"].partition("\n---\n")[0]
            errors = [] if "pipeline_tag" in front else [{"message": "no pipeline_tag"}]
            self._answer({"errors": errors, "warnings": []}, 400 if errors else 200)
        elif "/preupload/" in self.path:
            self._answer({"files": [_mode(one) for one in json.loads(body)["files"]]})
        elif self.path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            self._answer({"objects": [self._upload(one) for one in objects]})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                self._commit(json.loads(line))
            url = f"{server.address}/someone/model/commit/{'1' * 40}"
            self._answer({"commitUrl": url, "commitOid": "1" * 40, "success": True})

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        href = f"{self.server.address}/large/{one['oid']}"
        return {"oid": one["oid"], "size": one["size"], "actions": {"upload": {"href": href}}}

    def _commit(self, line: dict[str, Any]) -> None:
        value = line["value"]
        if line["key"] == "header":
            self.server.commits.append(value["summary"])
        elif line["key"] == "file":
            self.server.files[value["path"]] = base64.b64decode(value["content"])
        else:
            assert line["key"] == "lfsFile", line
            self.server.files[value["path"]] = self.server.large[value["oid"]]


def _mode(one: dict[str, Any]) -> dict[str, Any]:
    large = one["path"].endswith(".safetensors")
    mode = "lfs" if large else "regular"
    return {"path": one["path"], "uploadMode": mode, "shouldIgnore": False}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, as the Hub of this process."""
    server = StandIn()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    yield server
    server.shutdown()
    server.server_close()


def test_a_release_arrives_whole_in_one_commit(
    hub: StandIn, released: Path, tmp_path: Path
) -> None:
    address = push(released, "someone/model", "mine, weights 0123")
    assert address.startswith(hub.address)
    assert hub.commits == ["mine, weights 0123"]
    assert hub.private == "private"
    downloaded = tmp_path / "downloaded"
    for name, content in hub.files.items():
        (downloaded / name).parent.mkdir(parents=True, exist_ok=True)
        (downloaded / name).write_bytes(content)
    (downloaded / ".gitattributes").write_bytes(b"")
    assert not list(verify(downloaded))
    assert SUMS in hub.files


def test_a_repository_with_other_files_is_left_alone(hub: StandIn, released: Path) -> None:
    hub.files["old/model.bin"] = b"x"
    with pytest.raises(RunError, match=r"old/model\.bin"):
        push(released, "someone/model", "m")
    assert not hub.commits


def test_a_card_that_the_hub_refuses_is_one_line(hub: StandIn, released: Path) -> None:
    (released / "README.md").write_text("---\nlicense: 3\n---\n")
    with pytest.raises(RunError, match="no pipeline_tag"):
        push(released, "someone/model", "m")
    assert not hub.commits


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_is_one_line(hub: StandIn, released: Path, status: int) -> None:
    hub.refuses = status
    with pytest.raises(RunError, match="was not uploaded") as caught:
        push(released, "someone/model", "m")
    assert "\n" not in caught.value.line()


@pytest.mark.parametrize("name", ["model", "a/b/c", "../x/y", "a b/c", "-a/b..c"])
def test_a_name_that_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not OWNER/NAME"):
        check_repository(name)
