"""HTTP client for robots.txt, tdmrep.json and ai.txt, polite and bounded.

One request at a time per host, with a contact address in the User-Agent; at most 500 KiB of a body;
https first, http where https is not served. Lists of hosts and redirects are untrusted: only public
addresses are connected to, resolved once and connected to by that address.

Source   RFC 9309, 2.3.1: redirects are followed to other hosts, five at most; 4xx is "unavailable",
         5xx and no answer "unreachable". Stricter than there: more redirects, which it lets count as
         unavailable, and 429, a 4xx by number, are errors here. 429 means "later" (RFC 6585, 4),
         not "no such file": it is retried, and recorded as `rate_limited`, status 0.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urljoin, urlsplit
from weakref import WeakValueDictionary

import httpcore2

from stamm.base.files import sha256_bytes
from stamm.base.retry_after import retry_after_seconds
from stamm.corpus.consent.config import FetchConfig, Kind
from stamm.corpus.consent.hosts import ascii_name
from stamm.corpus.consent.robots_parser import PARSED_BYTES, whole_lines
from stamm.corpus.consent.snapshot import SnapshotEntry, decode_body

PATHS: dict[Kind, str] = {
    "robots": "/robots.txt",
    "tdmrep": "/.well-known/tdmrep.json",
    "ai_txt": "/ai.txt",
}
# RFC 9309, 2.5: a parser must read at least 500 KiB; the rest may be ignored.
KEPT_BYTES = PARSED_BYTES
MOST_REDIRECTS = 5
LONGEST_URL = 2048
_MOST_ADDRESSES = 4
_REDIRECTS = (301, 302, 303, 307, 308)
# Errors of the first request after which http is tried, or no other file of the host.
_NOT_BY_HTTPS = ("refused", "connect", "connect_time_out", "tls", "protocol")
NO_CONTACT = (
    "dns",
    "private_address",
    "refused",
    "connect",
    "connect_time_out",
    "tls",
    "time_out",
)
_HOST = re.compile(r"(?=.{1,253}(?::|$))(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}(?::([0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Printable ASCII that an address may contain.
_SAFE = "!#$%&'()*+,/:;=?@[]~"

Address = tuple[str, int]
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


class FetchError(Exception):
    """No readable answer.

    state   one of `snapshot.ERRORS`
    pause   seconds to wait before a retry as the site demands, 0 without a demand; None when a
            retry is useless
    """

    def __init__(self, state: str, *, pause: float | None = None) -> None:
        self.state = state
        self.pause = pause
        super().__init__(state)


def normalize_site(text: str) -> str:
    """A normalized host, with its port unless that is 80 or 443 ("example.org:8080").

    Edge     other ports below 1024 belong to other services than the web.
    Raises   ValueError for text that is not a host.
    """
    name = ascii_name(text.strip()).rstrip(".")
    match = _HOST.fullmatch(name)
    if match is None:
        raise ValueError("no host")
    port = int(match[1]) if match[1] else 443
    if port > 65535 or (port < 1024 and port not in _PORTS.values()):
        raise ValueError(f"port {port}")
    return name.partition(":")[0] if port in _PORTS.values() else name


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet.

    Edge     an IPv4 address inside an IPv6 one (mapped, 6to4, NAT64) is checked itself.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


async def public_addresses(host: str, port: int) -> Sequence[Address]:
    """The public addresses of a host.

    Raises   FetchError "dns" when it has no address, "private_address" when it has no public one.
    """
    loop = asyncio.get_running_loop()
    try:
        address_infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        later = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise FetchError("dns", pause=0 if later else None) from None
    public = [address for *_, (address, *_) in address_infos if is_public(str(address))]
    if not public:
        raise FetchError("private_address")
    return [(str(address), port) for address in dict.fromkeys(public)]


class Fetcher:
    """Fetches the files of sites. Use with `async with`.

    clock     returns the time that answers are dated with
    resolve   returns the addresses of a host; tests return that of a local server
    sleep     waits between two attempts
    trust     trusted certificates; None: those of the system
    """

    def __init__(
        self,
        config: FetchConfig,
        clock: Callable[[], datetime],
        *,
        resolve: Resolve = public_addresses,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trust or ssl.create_default_context(),
            max_keepalive_connections=config.hosts_at_once,
            keepalive_expiry=5.0,
            max_connections=None,
            network_backend=_PublicBackend(resolve),
        )

    async def __aenter__(self) -> Fetcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def site(self, domain: str, kinds: Iterable[Kind]) -> AsyncIterator[SnapshotEntry]:
        """Yield the files of a site; `domain` as `site_name` returns it.

        Edge     of a host that cannot be reached, or that limits the rate, the other files are not
                 requested and get that error. The scheme of the first answer is kept.
        """
        schemes: tuple[str, ...] = ("https", "http")
        left = ""
        for kind in kinds:
            if left:
                url = f"{schemes[-1]}://{domain}{PATHS[kind]}"
                yield self._entry(kind, domain, url, error=left)
                continue
            file, wants_long_pause = await self._file(kind, domain, schemes)
            yield file
            schemes = (urlsplit(file.url).scheme,)
            if wants_long_pause or file.error == "rate_limited":
                left = "rate_limited"
            elif file.error in NO_CONTACT and not file.redirects:
                left = file.error

    async def _file(
        self, kind: Kind, domain: str, schemes: tuple[str, ...]
    ) -> tuple[SnapshotEntry, bool]:
        for scheme in schemes:
            url = f"{scheme}://{domain}{PATHS[kind]}"
            file, wants_long_pause = await self._with_retries(kind, domain, url)
            if file.error not in _NOT_BY_HTTPS or file.redirects:
                break
        return file, wants_long_pause

    async def _with_retries(self, kind: Kind, domain: str, url: str) -> tuple[SnapshotEntry, bool]:
        """The answer at an address, retried while that may help.

        Also returns whether the site demanded a longer pause than `max_wait_s`; its last answer
        is then kept.
        """
        attempt = 0
        while True:
            file, pause = await self._once(kind, domain, url)
            wants_long_pause = pause is not None and pause > self._config.max_wait_s
            if pause is None or wants_long_pause or attempt == self._config.retries:
                return file, wants_long_pause
            backoff = min(self._config.backoff_s * 2**attempt, self._config.max_wait_s)
            await self._sleep(max(pause, backoff))
            attempt += 1

    async def _once(self, kind: Kind, domain: str, url: str) -> tuple[SnapshotEntry, float | None]:
        """The answer of one attempt, and the pause before a retry (None: do not retry)."""
        hops: list[str] = []
        try:
            reply = await self._follow_redirects(url, hops)
        except FetchError as error:
            return self._entry(kind, domain, url, hops, error=error.state), error.pause
        pause = reply.pause if reply.status >= 500 else None
        return self._entry(kind, domain, url, hops, reply), pause

    async def _follow_redirects(self, url: str, hops: list[str]) -> _Reply:
        """The last reply of a chain of redirects, whose addresses are added to `hops`."""
        while True:
            reply = await self._reply(hops[-1] if hops else url)
            if reply.status == 429:
                raise FetchError("rate_limited", pause=reply.pause)
            if reply.status not in _REDIRECTS or not reply.location:
                return reply
            if len(hops) == MOST_REDIRECTS:
                raise FetchError("redirects")
            hops.append(_redirect_target(hops[-1] if hops else url, reply.location))

    async def _reply(self, url: str) -> _Reply:
        """The reply to one request, sent when the host has no other request open."""
        host = urlsplit(url).hostname or ""
        turn = self._turns.setdefault(host, asyncio.Lock())
        async with turn:
            try:
                async with asyncio.timeout(self._config.answer_s):
                    return await self._exchange(url)
            except TimeoutError:
                raise FetchError("time_out", pause=0) from None
            except httpcore2.ConnectTimeout:
                raise FetchError("connect_time_out") from None
            except httpcore2.TimeoutException:
                raise FetchError("time_out", pause=0) from None
            except httpcore2.ConnectError:
                # TCP was connected, or _PublicBackend had raised its own error: TLS failed.
                raise FetchError("tls") from None
            except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol, ValueError):
                raise FetchError("protocol", pause=0) from None
            except (httpcore2.NetworkError, OSError):
                raise FetchError("connect", pause=0) from None

    async def _exchange(self, url: str) -> _Reply:
        headers = [
            ("User-Agent", self._config.user_agent),
            ("Accept", "text/plain, application/json, */*;q=0.1"),
            ("Accept-Encoding", "gzip"),
        ]
        patience = {
            "connect": self._config.connect_s,
            "read": self._config.answer_s,
            "write": self._config.answer_s,
        }
        opened = self._pool.stream("GET", url, headers=headers, extensions={"timeout": patience})
        async with opened as response:
            fields = {key.lower(): value for key, value in reversed(response.headers)}
            body, truncated = b"", False
            if 200 <= response.status < 300:
                body, truncated = await _body(response, fields.get(b"content-encoding", b""))
            return _Reply(
                status=response.status,
                location=fields.get(b"location", b"").decode("utf-8", "replace"),
                pause=retry_after_seconds(fields.get(b"retry-after", b""), self._clock()),
                body=body,
                truncated=truncated,
            )

    def _entry(
        self,
        kind: Kind,
        domain: str,
        url: str,
        hops: Sequence[str] = (),
        reply: _Reply | None = None,
        error: str = "",
    ) -> SnapshotEntry:
        body = reply.body if reply else b""
        return SnapshotEntry(
            kind=kind,
            domain=domain,
            url=url,
            status=reply.status if reply else 0,
            fetched=self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            redirects=tuple(hops),
            bytes=len(body),
            truncated=reply.truncated if reply else False,
            sha256=sha256_bytes(body) if reply and 200 <= reply.status < 300 else "",
            text=decode_body(body),
            error=error,
        )


@dataclass(frozen=True, kw_only=True)
class _Reply:
    status: int
    location: str
    pause: float
    body: bytes
    truncated: bool


class _PublicBackend(httpcore2.AsyncNetworkBackend):
    """Connects to the addresses that `resolve` allows and to no other."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first of a host's addresses that accepts one."""
        try:
            async with asyncio.timeout(timeout):
                return await self._connected(host, port, timeout)
        except TimeoutError:
            raise FetchError("connect_time_out") from None

    async def _connected(
        self, host: str, port: int, timeout: float | None
    ) -> httpcore2.AsyncNetworkStream:
        state = "dns"
        addresses = (await self._resolve(host, port))[:_MOST_ADDRESSES]
        share = timeout / len(addresses) if timeout and addresses else timeout
        for address, at in addresses:
            try:
                return await self._plain.connect_tcp(address, at, share)
            except httpcore2.ConnectTimeout:
                state = "connect_time_out"
            except httpcore2.ConnectError as error:
                state = "refused" if _was_refused(error) else "connect"
        raise FetchError(state)


def _was_refused(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConnectionRefusedError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


async def _body(response: httpcore2.Response, coding: bytes) -> tuple[bytes, bool]:
    """The whole lines of the first 500 KiB of a decoded body, and whether it was longer."""
    name = coding.strip().lower()
    if name not in (b"", b"identity", b"gzip", b"x-gzip"):
        raise FetchError("encoding")
    unpacked = _Gunzip() if name.endswith(b"gzip") else None
    kept, received = bytearray(), 0
    async for piece in response.aiter_stream():
        received += len(piece)
        room = KEPT_BYTES + 1 - len(kept)
        kept += unpacked.decompress(piece, room) if unpacked else piece[:room]
        if len(kept) > KEPT_BYTES:
            return whole_lines(bytes(kept)), True
        # A compressed stream without output.
        if received > 2 * KEPT_BYTES:
            raise FetchError("encoding")
    if unpacked and not unpacked.complete:
        raise FetchError("encoding")
    return bytes(kept), False


class _Gunzip:
    """Decompresses gzip with bounded output; several members are one stream (RFC 1952, 2.2)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._begun = False

    @property
    def complete(self) -> bool:
        return self._member.eof or not self._begun

    def decompress(self, piece: bytes, room: int) -> bytes:
        out = bytearray()
        self._begun = self._begun or bool(piece)
        try:
            while piece and len(out) < room:
                if self._member.eof:
                    self._member = zlib.decompressobj(wbits=31)
                out += self._member.decompress(piece, room - len(out))
                piece = self._member.unused_data
        except zlib.error:
            raise FetchError("encoding") from None
        return bytes(out)


def _redirect_target(url: str, location: str) -> str:
    """The absolute address of a Location header.

    Raises   FetchError "redirects" for an address that is not http(s), or too long.
    """
    try:
        parts = urlsplit(urljoin(url, location.strip()[: LONGEST_URL + 1]))
        usual = _PORTS[parts.scheme]
        port = parts.port or usual
        host = normalize_site(f"{parts.hostname}:{port}").partition(":")[0]
    except (ValueError, KeyError):
        raise FetchError("redirects") from None
    authority = host if port == usual else f"{host}:{port}"
    query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    target = f"{parts.scheme}://{authority}{quote(parts.path or '/', safe=_SAFE)}{query}"
    if len(target) > LONGEST_URL:
        raise FetchError("redirects")
    return target
