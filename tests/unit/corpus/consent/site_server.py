"""A local web server with many sites, some of them misbehaving, that records its requests."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stamm.corpus.consent.config import FetchConfig
from stamm.corpus.consent.fetch import Fetcher, FetchError

NOW = datetime(2026, 11, 22, 2, 20, tzinfo=UTC)
CERTIFICATE = Path(__file__).with_name("secure_example.pem")
Talk = Callable[[socket.socket], None]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is answered: an HTTP response, or whatever `talk` says on the connection."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    talk: Talk | None = None


@dataclass
class Sites:
    """The server. A path without a reply of its own is answered 404; the last reply is repeated.

    asked    host and path of every request, in order
    headers  those of the last request, in lower case
    busiest  the most requests of a host that were open at once
    """

    asked: list[tuple[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    busiest: Counter[str] = field(default_factory=Counter)
    busiest_of_all: int = 0
    pause: float = 0.0
    on_request: Callable[[], None] = lambda: None
    _replies: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)
    _open: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._plain = _Server(self, None)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        self._secure = _Server(self, context)
        # A port that is taken, and on which nobody listens.
        self._deaf = socket.create_server(("127.0.0.1", 0))
        self._deaf_port = self._deaf.getsockname()[1]
        self._deaf.close()
        self._deaf = socket.socket()
        self._deaf.bind(("127.0.0.1", self._deaf_port))
        self.plain_port = self._plain.server_address[1]
        self.secure_port = self._secure.server_address[1]
        self.deaf_port = self._deaf_port

    def reply(self, host: str, path: str, *replies: Reply) -> None:
        """Answer a path with these replies, one after another."""
        self._replies[host, path] = list(replies)

    def close(self) -> None:
        """Stop, and let whoever is kept waiting go."""
        self._wake.set()
        for server in (self._plain, self._secure):
            server.shutdown()
            server.server_close()
        self._deaf.close()

    def wait(self, seconds: float) -> None:
        """Do nothing for some time, or until the server closes."""
        self._wake.wait(seconds)

    def begin(self, host: str, path: str, headers: dict[str, str]) -> Reply:
        with self._lock:
            self.asked.append((host, path))
            self.headers = headers
            self._open[host] += 1
            self.busiest[host] = max(self.busiest[host], self._open[host])
            self.busiest_of_all = max(self.busiest_of_all, self._open.total())
            replies = self._replies.get((host, path), [Reply(status=404)])
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        self.on_request()
        self.wait(self.pause)
        return reply

    def end(self, host: str) -> None:
        with self._lock:
            self._open[host] -= 1


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, sites: Sites, context: ssl.SSLContext | None) -> None:
        self.sites = sites
        self.context = context
        super().__init__(("127.0.0.1", 0), _Visitor)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Visitor(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            connection = self.request
            if self.server.context is not None:
                connection = self.server.context.wrap_socket(connection, server_side=True)
            while self._one(connection):
                pass
            connection.close()

    def _one(self, connection: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(65536)
            if not piece:
                return False
            head += piece
        first, *lines = head.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        headers = {
            key.lower(): value.strip() for key, _, value in (x.partition(":") for x in lines)
        }
        host = headers["host"]
        reply = self.server.sites.begin(host, first.split(" ")[1], headers)
        try:
            if reply.talk is not None:
                reply.talk(connection)
                return False
            fields = "".join(f"{key}: {value}\r\n" for key, value in reply.headers)
            start = (
                f"HTTP/1.1 {reply.status} X\r\nContent-Length: {len(reply.body)}\r\n{fields}\r\n"
            )
        finally:
            self.server.sites.end(host)
        connection.sendall(start.encode("latin-1") + reply.body)
        return True


def configured(**options: Any) -> FetchConfig:
    """A configuration that waits no longer than a test may."""
    given = {"domains": "sites.txt", "agent": "test-bot/1.0", "contact": "https://example.org/bot"}
    return FetchConfig(**{**given, "answer_s": 5.0, "connect_s": 5.0, **options})


def client(
    sites: Sites, config: FetchConfig, naps: list[float], secure: Sequence[str] = ()
) -> Fetcher:
    """A client that finds every site on the server: by https those of `secure`, by http all."""

    async def resolve(host: str, port: int) -> list[tuple[str, int]]:
        if host.startswith("nowhere"):
            raise FetchError("dns")
        if port == 443:
            return [("127.0.0.1", sites.secure_port if host in secure else sites.deaf_port)]
        return [("127.0.0.1", sites.plain_port)]

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    return Fetcher(config, lambda: NOW, resolve=resolve, sleep=nap, trust=trust)
