"""A local HTTP server that answers as a judge behind an OpenAI-compatible endpoint does.

The rating of an answer that contains "quality 7" is a distribution around 7; of two answers the one of the
higher quality is preferred, and the one presented first a little more. Other answers are rated by
their likeness to the shipped good answers.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stamm.align.judge.charter import shipped

GOOD = [
    json.loads(line)["completion"].split()
    for line in shipped("package:good_answers.jsonl", "test").read_text().splitlines()
]
FIRST_BONUS = 0.15


@dataclass
class Scripted:
    """A response of the server."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


Script = Callable[[dict[str, Any], int], Scripted]


def completion(probabilities: dict[str, float], text: str | None = None) -> bytes:
    """The body of a chat completion whose first token has these probabilities."""
    best = max(probabilities, key=lambda token: probabilities[token])
    top = [
        {"token": token, "logprob": math.log(p), "bytes": None}
        for token, p in probabilities.items()
    ]
    written = best if text is None else text
    return json.dumps(
        {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": written},
                    "logprobs": {
                        "content": [{**top[list(probabilities).index(best)], "top_logprobs": top}]
                    },
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 1},
        }
    ).encode()


def good_judge(body: dict[str, Any], number: int) -> Scripted:
    """The judge of the module's docstring."""
    question = body["messages"][1]["content"]
    answers = re.findall(r"<<<ANSWER[^>]*>>>\n(.*?)\n<<<END OF ANSWER", question, re.DOTALL)
    qualities = [_quality(answer) for answer in answers]
    if len(qualities) == 1:
        middle = min(max(qualities[0], 1.0), 9.0)
        weights = {str(d): math.exp(-2 * abs(d - middle)) for d in range(1, 10)}
        total = sum(weights.values()) / 0.98
        return Scripted(body=completion({d: w / total for d, w in weights.items()} | {"The": 0.02}))
    first = 1 / (1 + math.exp(qualities[1] - qualities[0] - FIRST_BONUS))
    return Scripted(body=completion({"1": first, "2": 1 - first}))


def _quality(answer: str) -> float:
    if found := re.search(r"quality (\d(?:\.\d+)?)", answer):
        return float(found[1])
    words = answer.split()
    return 9 * max(difflib.SequenceMatcher(None, good, words, False).ratio() for good in GOOD)


class JudgeServer(ThreadingHTTPServer):
    """The server; `requests` holds the bodies that came, `keys` the Authorization headers."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """base_url of the endpoint."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, JudgeServer)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            number = len(server.requests)
            server.requests.append(body)
            server.keys.append(self.headers.get("Authorization"))
            server.times.append(time.monotonic())
        if self.path != "/v1/chat/completions":
            reply = Scripted(404, b'{"error": {"message": "no such path"}}')
        else:
            reply = server.script(body, number)
        time.sleep(reply.delay_s)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def serve(script: Script = good_judge) -> Iterator[JudgeServer]:
    """A running server."""
    server = JudgeServer(script)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
