"""The client of an endpoint against a local HTTP server: retries, limits, budget, secrets."""

from __future__ import annotations

import gzip
import itertools
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stamm.align.judge.config import Connection, EndpointJudge
from stamm.align.judge.endpoint import EndpointModel, JudgeBudget, api_key
from stamm.align.judge.judge import RATING, JudgeReply, JudgeRequest, NoReply
from stamm.base.errors import ConfigError, RunError
from tests.judge_server import JudgeServer, Script, Scripted, completion, serve

FAST = Connection(timeout_s=5, retries=2, backoff_s=0.01, max_wait_s=2, concurrency=4)
FIVE = completion({"5": 0.9})
KEY = "sk-secret-0123456789"


def requests(count: int) -> list[JudgeRequest]:
    return [JudgeRequest("Judge.", f"question {i}", RATING, f"row {i}") for i in range(count)]


def ask(
    server: JudgeServer | str,
    asked: Sequence[JudgeRequest],
    connection: Connection = FAST,
    *,
    key: str = "",
    stored: Sequence[JudgeReply] = (),
    **settings: Any,
) -> list[JudgeReply | NoReply]:
    url = server if isinstance(server, str) else server.url
    config = EndpointJudge(model="m", connection=replace(connection, base_url=url), **settings)
    model = EndpointModel(config, key, JudgeBudget(config.connection, stored))
    found: dict[int, JudgeReply | NoReply] = {}
    model.answer(asked, found.__setitem__)
    assert sorted(found) == list(range(len(asked)))
    return [found[place] for place in range(len(asked))]


def failing(first: int, scripted: Scripted) -> Script:
    """Fails the first requests, then answers."""
    return lambda body, number: scripted if number < first else Scripted(body=FIVE)


def test_a_request_is_what_the_endpoint_documents() -> None:
    with serve(lambda body, number: Scripted(body=FIVE)) as server:
        (reply,) = ask(server, requests(1), key=KEY, extra_body='{"seed": 3}')
    assert isinstance(reply, JudgeReply)
    assert reply.mean() == 5
    assert server.keys == [f"Bearer {KEY}"]
    assert server.requests == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Judge."},
                {"role": "user", "content": "question 0"},
            ],
            "temperature": 0,
            "max_tokens": 4,
            "logprobs": True,
            "top_logprobs": 20,
            "seed": 3,
        }
    ]


def test_sampled_digits_ask_for_no_log_probabilities() -> None:
    with serve(lambda body, number: Scripted(body=FIVE)) as server:
        ask(server, requests(1), digits="sampled")
    assert not {"logprobs", "top_logprobs"} & server.requests[0].keys()
    assert server.keys == [None]


@pytest.mark.parametrize(
    "scripted",
    [
        Scripted(500, b"oops"),
        Scripted(503, headers={"Retry-After": "0"}),
        Scripted(429, b'{"error": {"message": "slow down"}}'),
        Scripted(200, b"not json"),
        Scripted(200, b'{"choices": []}'),
    ],
    ids=lambda scripted: f"{scripted.status}-{scripted.body[:3]!r}",
)
def test_failures_that_may_pass_are_retried_with_growing_pauses(scripted: Scripted) -> None:
    with serve(failing(2, scripted)) as server:
        (reply,) = ask(server, requests(1), replace(FAST, backoff_s=0.1))
    assert isinstance(reply, JudgeReply)
    first, second = (b - a for a, b in itertools.pairwise(server.times))
    assert first >= 0.05
    assert second >= 0.1


def test_a_request_that_keeps_failing_is_one_failure_and_the_others_are_answered() -> None:
    def script(body: dict[str, Any], number: int) -> Scripted:
        bad = body["messages"][1]["content"] == "question 3"
        return Scripted(500, b"oops") if bad else Scripted(body=FIVE)

    with serve(script) as server:
        replies = ask(server, requests(6))
    assert replies[3] == NoReply("HTTP 500 (oops), 3 attempts")
    assert sum(isinstance(reply, JudgeReply) for reply in replies) == 5
    assert len(server.requests) == 5 + 3


def test_a_refused_request_is_not_retried() -> None:
    with serve(lambda body, number: Scripted(400, b'{"error": {"message": "too long"}}')) as server:
        assert ask(server, requests(1)) == [NoReply("HTTP 400 (too long)")]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("told", "fix"),
    [
        (
            "Unsupported value: 'temperature' does not support 0 with this model.",
            "temperature=none",
        ),
        ("Unsupported parameter: 'max_tokens' is not supported.", "max_completion_tokens"),
        ("This model does not support logprobs.", "judge.digits=sampled"),
    ],
)
def test_a_field_that_a_model_refuses_ends_the_run_with_the_servers_words(
    told: str, fix: str
) -> None:
    body = json.dumps({"error": {"message": told}}).encode()
    with (
        serve(lambda _, number: Scripted(400, body)) as server,
        pytest.raises(RunError) as refused,
    ):
        ask(server, requests(20), replace(FAST, concurrency=1))
    assert told.rstrip(".") in str(refused.value)
    assert fix in refused.value.fix
    assert len(server.requests) == 1


def test_the_temperature_is_left_out_on_request() -> None:
    def reasoning(body: dict[str, Any], number: int) -> Scripted:
        if "temperature" in body or "max_tokens" in body:
            return Scripted(400, b'{"error": {"message": "Unsupported parameter: temperature"}}')
        return Scripted(body=completion({"7": 1.0}))

    settings = {"temperature": None, "extra_body": '{"max_completion_tokens": 2000}'}
    with serve(reasoning) as server:
        (reply,) = ask(server, requests(1), digits="sampled", **settings)
    assert isinstance(reply, JudgeReply)
    assert reply.mean() == 7
    budget = JudgeBudget(FAST, ())
    identities = [
        EndpointModel(EndpointJudge(model="m", temperature=value), "", budget).identity
        for value in (0.0, None, 0.5)
    ]
    assert [json.dumps(one["temperature"]) for one in identities] == ["0", "null", "0.5"]


def test_replies_that_a_server_compresses_are_read() -> None:
    def compressed(data: bytes, encoding: str) -> Script:
        return lambda *_: Scripted(body=data, headers={"Content-Encoding": encoding})

    for data, encoding in ((gzip.compress(FIVE), "gzip"), (zlib.compress(FIVE), "deflate")):
        with serve(compressed(data, encoding)) as server:
            (reply,) = ask(server, requests(1))
        assert isinstance(reply, JudgeReply)
        assert reply.mean() == 5
    bomb = gzip.compress(b"0" * 3_000_000)
    for data, encoding, reason in (
        (bomb, "gzip", "a reply of over 100,000 bytes"),
        (FIVE, "br", "a reply with Content-Encoding br"),
        (gzip.compress(FIVE)[:-9], "gzip", "a reply whose gzip data ends early, 2 attempts"),
        (FIVE, "gzip", "a reply that is not gzip, which it states, 2 attempts"),
    ):
        limits = replace(FAST, max_reply_bytes=100_000, retries=1)
        with serve(compressed(data, encoding)) as server:
            assert ask(server, requests(1), limits) == [NoReply(reason)]


def test_retry_after_is_honoured_by_all_requests() -> None:
    with serve(failing(1, Scripted(429, headers={"Retry-After": "0.5"}))) as server:
        ask(server, requests(3), replace(FAST, concurrency=1))
    assert server.times[1] - server.times[0] >= 0.5


def test_an_endpoint_that_asks_for_a_long_pause_ends_the_run() -> None:
    with (
        serve(failing(9, Scripted(429, headers={"Retry-After": "3600"}))) as server,
        pytest.raises(RunError, match=r"asks to wait 3600 s.*max_wait_s = 2"),
    ):
        ask(server, requests(1))
    assert len(server.requests) == 1


def test_a_slow_reply_times_out() -> None:
    with serve(lambda body, number: Scripted(body=FIVE, delay_s=5.0)) as server:
        began = time.monotonic()
        found = ask(server, requests(1), replace(FAST, timeout_s=0.1, retries=1))
        assert time.monotonic() - began < 4
    assert found == [NoReply("time-out after 0.1 s, 2 attempts")]


def test_a_huge_reply_is_cut_off() -> None:
    with serve(lambda body, number: Scripted(body=b"x" * 3_000_000)) as server:
        found = ask(server, requests(1), replace(FAST, max_reply_bytes=100_000))
    assert found == [NoReply("a reply of over 100,000 bytes")]


def test_an_endpoint_that_is_not_there_ends_the_run_at_once() -> None:
    with serve() as server:
        url = server.url
    with pytest.raises(RunError, match="cannot be reached") as error:
        ask(url, requests(50))
    assert url in error.value.line()


@pytest.mark.parametrize(("status", "words"), [(401, "refuses the API key"), (404, "no such path")])
def test_errors_that_concern_all_requests_end_the_run_without_showing_the_key(
    status: int, words: str
) -> None:
    body = f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode()
    with serve(lambda b, n: Scripted(status, body)) as server, pytest.raises(RunError) as error:
        ask(server, requests(50), key=KEY)
    assert words in error.value.line()
    assert "provided: ***" in error.value.line()
    assert KEY not in error.value.line()
    assert len(server.requests) <= FAST.concurrency


def test_16_failures_in_a_row_end_the_run() -> None:
    with (
        serve(lambda body, number: Scripted(400)) as server,
        pytest.raises(RunError, match="16 requests in a row failed, the last with: HTTP 400"),
    ):
        ask(server, requests(100))
    assert len(server.requests) < 30


def test_redirects_are_not_followed() -> None:
    with serve() as other:
        target = f"{other.url}/chat/completions"
        moved = Scripted(307, headers={"Location": target})
        with serve(lambda body, number: moved) as server:
            assert ask(server, requests(1), key=KEY) == [NoReply("HTTP 307")]
    assert other.requests == []


def test_so_many_requests_are_open_at_once_and_no_more() -> None:
    open_now: list[int] = []
    most: list[int] = []

    def script(body: dict[str, Any], number: int) -> Scripted:
        open_now.append(number)
        most.append(len(open_now))
        time.sleep(0.05)
        open_now.pop()
        return Scripted(body=FIVE)

    with serve(script) as server:
        ask(server, requests(12), replace(FAST, concurrency=3))
    assert max(most) == 3


def test_the_rate_limit_spaces_requests() -> None:
    with serve(lambda body, number: Scripted(body=FIVE)) as server:
        ask(server, requests(5), replace(FAST, requests_per_minute=1200))
    assert server.times[-1] - server.times[0] >= 0.9 * 4 * 0.05


@pytest.mark.parametrize(
    ("limit", "message", "most"),
    [
        ({"max_requests": 5}, "5 of judge.connection.max_requests = 5", 3),
        ({"max_tokens": 500}, "of judge.connection.max_tokens = 500", 3),
        ({"max_cost": 0.5, "prompt_price": 1000.0}, "of judge.connection.max_cost = 0.5", 3),
    ],
)
def test_the_budget_ends_the_run_and_counts_stored_replies(
    limit: dict[str, float], message: str, most: int
) -> None:
    stored = [JudgeReply({"5": 0.9}, "5", 100, 1)] * 2
    limited = replace(FAST, concurrency=1, **limit)
    with (
        serve(lambda body, number: Scripted(body=FIVE)) as server,
        pytest.raises(RunError, match="budget of the judge is used up") as error,
    ):
        ask(server, requests(50), limited, stored=stored)
    assert message in error.value.line()
    assert len(server.requests) == most


def test_max_requests_is_never_exceeded_by_concurrent_requests() -> None:
    with serve(failing(3, Scripted(500))) as server, pytest.raises(RunError):
        ask(server, requests(50), replace(FAST, concurrency=8, max_requests=10))
    assert len(server.requests) <= 10


def test_the_key_comes_from_the_named_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Connection(base_url="http://localhost:1/v1", api_key_env="JUDGE_KEY")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    assert api_key(replace(here, api_key_env="")) == ""
    with pytest.raises(ConfigError, match="JUDGE_KEY is not set"):
        api_key(here)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    assert api_key(here) == KEY
    assert api_key(replace(here, base_url="https://example.org/v1")) == KEY
    with pytest.raises(ConfigError, match="not encrypted") as error:
        api_key(replace(here, base_url="http://example.org/v1"))
    monkeypatch.setenv("JUDGE_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="value not shown") as other:
        api_key(here)
    assert KEY not in error.value.line()
    assert "lines" not in other.value.line()


def test_a_key_in_the_place_of_its_variable_is_refused_unseen() -> None:
    with pytest.raises(ConfigError) as error:
        Connection(api_key_env=KEY)
    assert KEY not in error.value.line()


@pytest.mark.parametrize(
    "values",
    [
        {"base_url": "ftp://x/v1"}, {"base_url": "http://user:pw@x/v1"}, {"base_url": "x"},
        {"base_url": "http://x/v1?key=1"}, {"base_url": "http://x:99999/v1"}, {"timeout_s": 0.0},
        {"max_cost": 1.0}, {"concurrency": 0}, {"backoff_s": 100.0},
    ],
)  # fmt: skip
def test_impossible_connections_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Connection(**values)


@pytest.mark.parametrize("extra", ["[1]", "{", '{"model": "x"}', '"text"'])
def test_extra_fields_are_an_object_of_other_fields(extra: str) -> None:
    with pytest.raises(ConfigError, match="extra_body"):
        EndpointJudge(extra_body=extra)
