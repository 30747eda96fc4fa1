"""A judge behind an OpenAI-compatible endpoint, asked by concurrent requests with limits.

Only the configured address is contacted: redirects are not followed. A request that fails in a way
that may pass (408, 409, 429, 5xx, a time-out, a broken connection, a malformed reply) is sent again after
a pause with exponential backoff and jitter; Retry-After is honoured, for all requests. The run stops
when the endpoint cannot be reached, refuses the key or does not know the model, and when 16 requests
in a row fail.

Checked  tests/unit/align/test_judge_endpoint.py, tests/cli/test_charter_command.py (a local HTTP server)
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import random
import re
import ssl
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpcore2

from stamm.align.judge.charter import WORDING
from stamm.align.judge.config import Connection, EndpointJudge
from stamm.align.judge.endpoint_reply import (
    MalformedReplyError,
    ReportedError,
    UnusableReplyError,
    error_text,
    read_reply,
)
from stamm.align.judge.judge import JudgeReply, JudgeRequest, NoReply, Received
from stamm.base.errors import ConfigError, RunError, visible
from stamm.base.retry_after import retry_after_seconds


def api_key(connection: Connection) -> str:
    """The key; "" when the configuration names no variable.

    Raises   ConfigError when the variable is not set, or the key would be sent unencrypted to
             another machine
    """
    name = connection.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            f"the environment variable {name} is not set",
            where="judge.connection.api_key_env",
            fix=f"Export {name}, or leave judge.connection.api_key_env out",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{name} holds characters that no API key has (value not shown)")
    parts = urlsplit(connection.base_url)
    if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        raise ConfigError(
            f"{connection.base_url} is not encrypted: the API key would be sent as plain text",
            where="judge.connection.base_url",
            fix="Use https, or leave judge.connection.api_key_env out",
        )
    return key


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_FIX = "Raise {name} and run the same command again: stored replies are not asked for again"


class JudgeBudget:
    """Counts what a judge costs and stops the run when a limit is reached.

    stored   replies that this run has paid for already

    Requests are counted before they are sent, retries too, so that max_requests is never exceeded.
    Tokens are known afterwards: requests that are open at the same time may exceed max_tokens and
    max_cost.
    """

    def __init__(self, config: Connection, stored: Iterable[JudgeReply] = ()) -> None:
        self._config = config
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        for reply in stored:
            self.requests += 1
            self.spend(reply)

    @property
    def cost(self) -> float:
        """Cost so far, in the currency of the prices."""
        prompt = self.prompt_tokens * self._config.prompt_price
        return (prompt + self.completion_tokens * self._config.completion_price) / 1e6

    def begin(self) -> None:
        """Count a request that is about to be sent.

        Raises   RunError when the budget is used up, with the limit and the fix
        """
        config = self._config
        tokens = self.prompt_tokens + self.completion_tokens
        for name, spent, limit in (
            ("max_requests", self.requests, config.max_requests),
            ("max_tokens", tokens, config.max_tokens),
            ("max_cost", round(self.cost, 6), config.max_cost),
        ):
            if limit and spent >= limit:
                key = f"judge.connection.{name}"
                raise RunError(
                    f"the budget of the judge is used up: {spent:,} of {key} = {limit:,}",
                    fix=_FIX.format(name=key),
                )
        self.requests += 1

    def spend(self, reply: JudgeReply) -> None:
        """Count the tokens of a reply."""
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


_IN_A_ROW = 16
_MAX_TOKENS = 4
_SHOWN = 300
_ANY_ZLIB = zlib.MAX_WBITS + 32  # zlib recognises its own frame and gzip's by their heads
_TRANSIENT = frozenset({408, 409, 425, 429})
_FATAL = {
    401: ("refuses the API key", "Check the key in the variable of judge.connection.api_key_env"),
    403: ("refuses access", "Check the key in the variable of judge.connection.api_key_env"),
    404: ("has no such path or model", "Check judge.connection.base_url and judge.model"),
    402: ("demands payment", "Pay, then run the same command again"),
}
_REFUSED_FIELDS = {
    "temperature": "Set judge.temperature=none, which leaves it out",
    "max_tokens": "Set judge.extra_body='{\"max_completion_tokens\": 2000}' in its place",
    "logprobs": "Set judge.digits=sampled, which asks for none",
}
"""Fields of a request that some models do not take, and what to do."""
_UNSUPPORTED = re.compile(r"unsupported|not support|not allowed", re.IGNORECASE)


class _TransientError(Exception):
    """A failure that may pass; `pause` is the seconds to wait that the endpoint asks for."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause = pause


class _PermanentError(Exception):
    """A failure of this request that will not pass, of a kind of NoReply."""

    def __init__(self, reason: str, kind: str = "no reply") -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class _HttpReply:
    status: int
    pause: float
    body: bytes


class EndpointModel:
    """A JudgeModel over HTTP.

    key      the API key; "": none
    budget   counts requests and tokens of the run
    """

    def __init__(self, config: EndpointJudge, key: str, budget: JudgeBudget) -> None:
        self._config = config
        self._connection = config.connection
        self._key = key
        self._budget = budget
        self._url = f"{self._connection.base_url.rstrip('/')}/chat/completions"
        self._answered = False
        self._failed_in_a_row = 0
        self._error: Exception | None = None
        self._stopped = asyncio.Event()
        self._open_from = 0.0  # time.monotonic() from which the next request may begin
        self.identity: Mapping[str, object] = {
            "kind": "endpoint",
            "model": config.model,
            "digits": config.digits,
            "top_logprobs": config.top_logprobs if config.digits == "logprobs" else None,
            "extra_body": config.extra(),
            "temperature": _plain(config.temperature),
            "wording": WORDING,
        }

    def answer(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        """As JudgeModel.answer. After an error, replies that are on their way are still received."""
        asyncio.run(self._answer_all(requests, received))
        if self._error is not None:
            raise self._error

    async def _answer_all(self, requests: Sequence[JudgeRequest], received: Received) -> None:
        waiting = iter(enumerate(requests))
        self._stopped = asyncio.Event()
        count = min(self._connection.concurrency, len(requests))
        pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=count,
            max_keepalive_connections=count,
        )
        async with pool, asyncio.TaskGroup() as workers:
            for _ in range(count):
                workers.create_task(self._work(pool, waiting, received))

    async def _work(
        self,
        pool: httpcore2.AsyncConnectionPool,
        waiting: Iterator[tuple[int, JudgeRequest]],
        received: Received,
    ) -> None:
        for place, request in waiting:
            try:
                reply = await self._with_retries(pool, request)
                if reply is not None:
                    self._note(reply)
                    received(place, reply)
            except Exception as error:
                self._error = self._error or error
                self._stopped.set()
            if self._stopped.is_set():
                return

    def _note(self, reply: JudgeReply | NoReply) -> None:
        """Count failures in a row.

        Raises   RunError when there are too many
        """
        if isinstance(reply, JudgeReply) or reply.kind != "no reply":
            self._failed_in_a_row = 0
            self._answered = True
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _IN_A_ROW:
            raise RunError(
                f"{self._url}: {_IN_A_ROW} requests in a row failed, the last with: {reply.reason}",
                fix="Run the same command again when the endpoint works",
            )

    async def _sleep(self, seconds: float) -> None:
        """Wait, or return early when the run is stopped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    async def _with_retries(
        self, pool: httpcore2.AsyncConnectionPool, request: JudgeRequest
    ) -> JudgeReply | NoReply | None:
        """The reply after as many attempts as needed; None when the run is stopped between two."""
        connection = self._connection
        for attempt in range(connection.retries + 1):
            await self._turn()
            if self._stopped.is_set():
                return None
            self._budget.begin()
            try:
                reply = await self._once(pool, request)
            except _PermanentError as error:
                return NoReply(str(error), error.kind)
            except _TransientError as error:
                reason = error.reason
                if error.pause > connection.max_wait_s:
                    raise RunError(
                        f"{self._url} asks to wait {error.pause:.0f} s, more than "
                        f"judge.connection.max_wait_s = {connection.max_wait_s:g}",
                        fix="Run the same command again later",
                    ) from None
                if error.pause:
                    self._open_from = max(self._open_from, time.monotonic() + error.pause)
                if attempt < connection.retries:
                    longest = min(connection.backoff_s * 2**attempt, connection.max_wait_s)
                    await self._sleep(longest * random.uniform(0.5, 1.0))
            else:
                self._budget.spend(reply)
                return reply
        attempts = connection.retries + 1
        return NoReply(reason if attempts == 1 else f"{reason}, {attempts} attempts")

    async def _turn(self) -> None:
        """Wait until the next request may begin: rate limit, and pauses that the endpoint asks for."""
        per_minute = self._connection.requests_per_minute
        while (wait := self._open_from - time.monotonic()) > 0 and not self._stopped.is_set():
            await self._sleep(wait)
        if per_minute:
            self._open_from = time.monotonic() + 60 / per_minute

    async def _once(self, pool: httpcore2.AsyncConnectionPool, request: JudgeRequest) -> JudgeReply:
        timeout_s = self._connection.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._exchange(pool, request)
        except (TimeoutError, httpcore2.TimeoutException):
            raise _TransientError(f"time-out after {timeout_s:g} s") from None
        except httpcore2.ConnectError as error:
            if self._answered:
                raise _TransientError("the connection was refused") from None
            raise RunError(
                f"{self._url} cannot be reached: {visible(str(error), _SHOWN) or 'no connection'}",
                fix="Start the server, or correct judge.connection.base_url",
            ) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            raise _TransientError(f"a broken connection ({type(error).__name__})") from None
        return self._read(reply, request)

    def _read(self, reply: _HttpReply, request: JudgeRequest) -> JudgeReply:
        if reply.status != 200:
            raise self._failure(
                reply.status, f"HTTP {reply.status}", _excerpt(reply.body), reply.pause
            )
        try:
            return read_reply(
                reply.body,
                request.digits,
                sampled=self._config.digits == "sampled",
                prompt_characters=len(request.system) + len(request.user),
            )
        except MalformedReplyError as error:
            raise _TransientError(f"a reply that cannot be read: {error}") from None
        except ReportedError as error:
            named = f"HTTP 200 with error {error.status or ''}".rstrip()
            shown = f" ({visible(str(error), _SHOWN)})"
            raise self._failure(error.status or 500, named, shown, reply.pause) from None
        except UnusableReplyError as error:
            self._budget.spend(error.spent)
            raise _PermanentError(str(error), error.kind) from None

    def _failure(self, status: int, named: str, shown: str, pause: float) -> Exception:
        """The error of an HTTP status."""
        reason = named + shown
        if status in _FATAL:
            what, fix = _FATAL[status]
            return RunError(f"{self._url} {what}: {reason}", fix=fix)
        if status in _TRANSIENT or status >= 500:
            return _TransientError(reason, pause)
        if status in (400, 422) and not self._answered and _UNSUPPORTED.search(shown):
            for field, fix in _REFUSED_FIELDS.items():
                if field in shown:
                    return RunError(f"{self._url} refuses {field}: {reason}", fix=fix)
        return _PermanentError(reason)

    async def _exchange(
        self, pool: httpcore2.AsyncConnectionPool, request: JudgeRequest
    ) -> _HttpReply:
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "stamm-judge"),
        ]
        if self._key:
            headers.append(("Authorization", f"Bearer {self._key}"))
        content = json.dumps(self._body(request)).encode()
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._connection.timeout_s)
        opened = pool.stream(
            "POST", self._url, headers=headers, content=content, extensions={"timeout": timeouts}
        )
        async with opened as response:
            fields = {name.lower(): value for name, value in reversed(response.headers)}
            body = bytearray()
            async for piece in response.aiter_stream():
                body += piece
                if len(body) > self._connection.max_reply_bytes:
                    limit = self._connection.max_reply_bytes
                    raise _PermanentError(f"a reply of over {limit:,} bytes")
            data = _decoded(
                bytes(body),
                fields.get(b"content-encoding", b""),
                self._connection.max_reply_bytes,
            )
            if self._key:  # some endpoints repeat it in messages
                data = data.replace(self._key.encode(), b"***")
            pause = retry_after_seconds(fields.get(b"retry-after", b""), datetime.now(UTC))
            return _HttpReply(response.status, pause, data)

    def _body(self, request: JudgeRequest) -> dict[str, Any]:
        extra = self._config.extra()
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": request.user},
            ],
        }
        if self._config.temperature is not None:
            body["temperature"] = _plain(self._config.temperature)
        if "max_completion_tokens" not in extra:
            body["max_tokens"] = _MAX_TOKENS
        if self._config.digits == "logprobs":
            body |= {"logprobs": True, "top_logprobs": self._config.top_logprobs}
        return body | extra


def _plain(temperature: float | None) -> float | None:
    """0 for 0.0: the identity of stored replies does not depend on how the number is written."""
    return int(temperature) if temperature in (0, 1) else temperature


def _decoded(body: bytes, encoding: bytes, most: int) -> bytes:
    """The content of a body that a server has compressed, although it was asked not to."""
    name = encoding.strip().lower().decode("ascii", "replace")
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise _PermanentError(f"a reply with Content-Encoding {visible(name, 40)}")
    decoder = zlib.decompressobj(_ANY_ZLIB)
    try:
        content = decoder.decompress(body, most + 1)
    except zlib.error:
        raise _TransientError(f"a reply that is not {name}, which it states") from None
    if len(content) > most:
        raise _PermanentError(f"a reply of over {most:,} bytes")
    if not decoder.eof:
        raise _TransientError(f"a reply whose {name} data ends early")
    return content


def _excerpt(body: bytes) -> str:
    """The beginning of an error's text, in brackets; "" without one."""
    text = body[:4000].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        text = error_text(json.loads(body)) or text
    text = " ".join(text.split())
    return f" ({visible(text, _SHOWN)})" if text else ""
