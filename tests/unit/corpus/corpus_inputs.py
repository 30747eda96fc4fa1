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
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: 2024-05-06T00:00:00Z\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000001>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    if cut:
        return head.encode() + http[:-cut]
    return head.encode() + http + b"\r\n\r\n"


def page(paragraph: str, head: str = "") -> bytes:
    """A page whose main content is one paragraph."""
    return (
        f"<html lang='en'><head>{head}</head><body><article><p>{paragraph}</p></article></body>"
        "</html>"
    ).encode()
