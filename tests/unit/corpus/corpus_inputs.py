"""Web archives and pages made by hand, for the corpus tests."""

from __future__ import annotations

from collections.abc import Mapping


def warc_response(
    url: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    status: str = "200 OK",
    cut: int = 0,
) -> bytes:
    """One response record; `cut` bytes are missing at its end, against its own length."""
    lines = "".join(f"{k}: {v}\r\n" for k, v in (headers or {"Content-Type": "text/html"}).items())
    http = f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body
    record = warc_record(url, http, content_type="application/http; msgtype=response")
    return record[: -4 - cut] if cut else record


def warc_record(
    url: str,
    content: bytes,
    *,
    kind: str = "response",
    content_type: str = "",
    fields: str = "",
    length: str = "",
) -> bytes:
    """One record of any kind; `fields` are further lines of its head, `length` a wrong one."""
    typed = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: 2024-05-06T00:00:00Z\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000001>\r\n"
        f"{typed}{fields}Content-Length: {length or len(content)}\r\n\r\n"
    )
    return head.encode() + content + b"\r\n\r\n"


def page(paragraph: str, head: str = "") -> bytes:
    """A page whose main content is one paragraph."""
    return (
        f"<html lang='en'><head>{head}</head><body><article><p>{paragraph}</p></article></body>"
        "</html>"
    ).encode()
