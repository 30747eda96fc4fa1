"""`stamm run align.charter` through the real command line, against a local HTTP server."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.models.decoder import build_decoder
from stamm.models.serialization import checked_config, save_decoder
from stamm.runs.model_outputs import weights_sha256
from tests.conftest import Stamm, command, environment, given_once
from tests.judge_server import JudgeServer, Script, Scripted, completion, good_judge, serve
from tests.unit.untrained_run import untrained_run

CHARTER = "# Ours\n\n1. Help\nBe helpful [1.1]. Be brief [1.2].\n\n2. Truth\nSay what is true.\n"
FAST = ("retries=1", "backoff_s=0.01", "timeout_s=20")
RUN = Path("runs/align.charter")
SECRET = "sk-secret-9876543210"


def write(
    folder: Path, qualities: tuple[float, ...] = (3, 8, 5, 8, 6, 7, 2), prompts: int = 2
) -> None:
    rows = [
        {
            "id": f"p{prompt}",
            "prompt": [{"role": "user", "content": f"Question {prompt}?"}],
            "completion": [{"role": "assistant", "content": f"quality {quality}"}],
            "sample": sample,
            "ref_rewards": [1.0],
        }
        for prompt in range(prompts)
        for sample, quality in enumerate(qualities)
    ]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "charter.md").write_text(CHARTER)


def words(server: JudgeServer | str, *more: str) -> list[str]:
    url = server if isinstance(server, str) else server.url
    connection = [f"judge.connection.{word}" for word in (f"base_url={url}", *FAST)]
    return given_once(
        "run", "align.charter", "answers=answers.jsonl", "charter=charter.md", "judge.model=m",
        *connection, *more,
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_answers_are_rated_ranked_and_a_second_run_asks_nothing(
    stamm: Stamm, tmp_path: Path
) -> None:
    write(tmp_path)
    with serve() as server:
        done = stamm(*words(server, "validation.chains=3"))
        assert done.returncode == 0, done.stderr
        asked = len(server.requests)
        again = stamm(*words(server, "validation.chains=3"))
        assert (again.returncode, len(server.requests)) == (0, asked)
        # With the replies of the first run, another configuration asks only for what is new.
        known = stamm(
            *words(server, "validation=none", "rating.top=3", "--out", "runs/other"),
            "select=SelectConfig",
            "select.candidates=3",
            f"judge.recorded={RUN}/charter/requests.jsonl",
        )
        assert known.returncode == 0, known.stderr
        assert len(server.requests) == asked
    root = tmp_path / RUN
    judged = json.loads((root / "judge" / "judge.json").read_text())
    assert judged["chains"] == 3
    assert judged["passed"]
    assert judged["pointwise_all"]["pairs"] == judged["pairwise_all"]["pairs"] == 3 * 36
    assert judged["pointwise_all"]["right"] > 0.9 * 3 * 36
    ratings = lines(root / "charter" / "ratings.jsonl")
    assert len(ratings) == 14
    assert ratings[0]["scores"].keys() == {"1", "2"}
    assert ratings[0]["mean"] == pytest.approx(3, abs=0.1)
    assert ratings[0]["masses"]["1"] == pytest.approx(0.98)
    rewards = lines(root / "charter" / "rewards.jsonl")
    assert [row["rank"] for row in rewards[:7]] == [6, 1.5, 5, 1.5, 4, 3, 7]
    assert rewards[0]["reward"] == pytest.approx(1.5 / 7)
    assert rewards[0]["sample"] == 0
    assert "ref_rewards" not in rewards[0]  # of another reward
    pair = lines(tmp_path / "runs" / "other" / "select" / "examples.jsonl")[0]
    assert pair["chosen"][0]["content"] == "quality 8"
    assert pair["rejected"][0]["content"] == "quality 3"
    assert sorted(pair["ref_rewards"]) == sorted(row["reward"] for row in rewards[3:7])
    summary = json.loads((root / "charter" / "summary.json").read_text())
    assert (summary["rated"], summary["prompts"], summary["unrated"]) == (14, 2, {})
    assert len(lines(root / "judge" / "requests.jsonl")) == judged["replies"]
    assert len(lines(root / "charter" / "requests.jsonl")) == summary["replies"]
    assert asked == judged["replies"] + summary["replies"]
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('\n{"id": "new", "prompt": "Another question?", "completion": "quality 4"}')
    with serve() as server:  # at another address
        grown = stamm(*words(server, "validation.chains=3"))
    assert grown.returncode == 0, grown.stderr
    assert len(server.requests) == 2  # an article each
    assert "1 prompts have a single rated answer" in grown.stdout
    assert "Pairs of degraded answers ordered rightly" in (root / "log" / "run.log").read_text()


@pytest.mark.slow
def test_a_killed_run_asks_only_for_what_is_missing_and_ends_the_same(tmp_path: Path) -> None:
    write(tmp_path)

    def slowly(body: dict[str, Any], number: int) -> Scripted:
        time.sleep(0.02)
        return good_judge(body, number)

    with serve(slowly) as server:
        arguments = command(*words(server, "validation.chains=1"))
        whole = subprocess.run(
            [*arguments, "--out", "whole"],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert whole.returncode == 0, whole.stderr
        needed, before = len(server.requests), 0
        for number, wanted in enumerate((30, 60, None)):
            began = len(server.requests)
            process = subprocess.Popen(
                [*arguments, "--out", "killed"],
                cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            while wanted and len(server.requests) < began + 30 and process.poll() is None:
                time.sleep(0.01)
            if wanted:
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=200)
            before += len(server.requests) - began
            assert process.returncode == (-signal.SIGKILL if wanted else 0), number
    # at each kill at most 8 requests were open
    assert needed <= before <= needed + 2 * 8
    for name in (
        "judge/judge.json",
        "judge/requests.jsonl",
        "charter/rewards.jsonl",
        "charter/summary.json",
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def _status(status: int, body: bytes = b"", **headers: str) -> Script:
    return lambda request, number: Scripted(
        status, body, {k.replace("_", "-"): v for k, v in headers.items()}
    )


def _prose(body: dict[str, Any], number: int) -> Scripted:
    return Scripted(body=completion({"I": 0.7, "The": 0.3}, text="I think\x1b[31m it is good"))


def _slow(body: dict[str, Any], number: int) -> Scripted:
    return Scripted(body=completion({"5": 1.0}), delay_s=2.0)


_NO_LOG_PROBS = b'{"choices": [{"message": {"content": "7"}, "logprobs": null}]}'
BAD: dict[str, tuple[Script, tuple[str, ...], tuple[str, ...]]] = {
    "prose": (
        _prose, (),
        ("of 14 answers", "× prose", "answers.jsonl, row", "article",
         "I think\\\\x1b[31m it is good", "digits have 0%"),
    ),
    "500": (_status(500, b"oops"), (), ("× no reply", "HTTP 500 (oops), 2 attempts", "of 14 answers")),
    "time-out": (
        _slow, ("judge.connection.timeout_s=0.2", "judge.connection.retries=0"),
        ("× no reply", "time-out after 0.2 s"),
    ),
    "malformed": (_status(200, b"<html>"), (), ("× no reply", "a reply that cannot be read: malformed JSON")),
    "huge": (_status(200, b"x" * 2_000_000), (), ("a reply of over 1,000,000 bytes",)),
    "429": (_status(429, b"", Retry_After="900"), (), ("asks to wait 900 s",)),
    "key": (
        _status(401, f"bad key {SECRET}".encode()), ("judge.connection.api_key_env=JUDGE_KEY",),
        ("refuses the API key: HTTP 401 (bad key ***)",),
    ),
    "no log-probabilities": (_status(200, _NO_LOG_PROBS), (), ("judge.digits=sampled",)),
    "budget": (good_judge, ("judge.connection.max_requests=5",), ("5 of judge.connection.max_requests = 5",)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_a_bad_judge_is_one_clear_line(
    case: str, stamm: Stamm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    write(tmp_path)
    script, settings, expected = BAD[case]
    with serve(script) as server:
        done = stamm(*words(server, "validation=none", *settings))
    assert done.returncode == 1, done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("stamm: ")]
    for text in expected:
        assert text in line
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    files = [p for p in (tmp_path / RUN).rglob("*") if p.is_file()]
    assert files
    assert not [p for p in files if SECRET.encode() in p.read_bytes()]
    assert not (tmp_path / RUN / "charter" / "rewards.jsonl").exists()


@pytest.mark.slow
def test_what_a_judge_leaves_unrated_is_counted(stamm: Stamm, tmp_path: Path) -> None:
    """A raised limit lets the run end; a raised budget and a moved endpoint resume it."""
    write(tmp_path)

    def script(body: dict[str, Any], number: int) -> Scripted:
        """Prose for the worst answer, a refusal for the one above it, and a key that nobody knows."""
        question = body["messages"][1]["content"]
        scripted = _prose(body, number) if "quality 2" in question else good_judge(body, number)
        plain = json.loads(scripted.body) | {"mood": "sour"}
        if "quality 3" in question:
            plain["choices"][0]["message"]["refusal"] = "I cannot."
        return Scripted(body=json.dumps(plain).encode())

    more = ("validation=none", "rating.max_unrated=0.3", "rating.top=3")
    with serve(script) as server:
        stopped = stamm(*words(server, *more, "judge.connection.max_requests=20"))
        assert "max_requests = 20" in stopped.stderr
        assert len(server.requests) == 20
    stored = len(lines(tmp_path / RUN / "charter" / "requests.jsonl"))
    with serve(script) as server:
        done = stamm(*words(server, *more, "judge.connection.max_requests=1000"))
        assert done.returncode == 0, done.stderr
    assert "10 answers to 2 prompts rated, 4 unrated" in done.stderr
    summary = json.loads((tmp_path / RUN / "charter" / "summary.json").read_text())
    assert summary["unrated"] == {"refusal": 2, "prose": 2}
    # Stored replies are not asked for again; refusals are not stored.
    refused = sum("quality 3" in asked["messages"][1]["content"] for asked in server.requests)
    assert 0 < stored <= 20 and len(server.requests) == summary["replies"] - stored + refused
    counted = f"Unknown keys in replies of the judge, not used: mood ({summary['replies']})."
    assert done.stderr.count(counted) == 1
    assert summary["unknown_keys"] == {"mood": summary["replies"]}
    ratings = lines(tmp_path / RUN / "charter" / "ratings.jsonl")
    assert [row["row"] for row in ratings if row.get("reason") == "prose"] == [7, 14]
    assert [row["row"] for row in ratings if row.get("reason") == "refusal"] == [1, 8]
    assert len(lines(tmp_path / RUN / "charter" / "rewards.jsonl")) == 10


@pytest.mark.slow
def test_a_judge_that_cannot_tell_good_from_bad_is_refused_before_it_rates(
    stamm: Stamm, tmp_path: Path
) -> None:
    write(tmp_path)

    def always_five(body: dict[str, Any], number: int) -> Scripted:
        digits = (
            {"1": 0.5, "2": 0.5}
            if "answer 1 or answer 2" in body["messages"][1]["content"]
            else {"5": 1.0}
        )
        return Scripted(body=completion(digits))

    with serve(always_five) as server:
        done = stamm(*words(server, "validation.chains=1"))
    assert done.returncode == 1
    assert "cannot tell good answers from degraded ones: its ratings order 0.0%" in done.stderr
    judged = json.loads((tmp_path / RUN / "judge" / "judge.json").read_text())
    assert (judged["passed"], judged["pointwise_all"]["ties"]) == (False, 36)
    assert not any("quality" in r["messages"][1]["content"] for r in server.requests)


@pytest.mark.slow
def test_what_is_missing_is_said_before_anything_is_asked(stamm: Stamm, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "empty.md").write_text("# Nothing\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Only this"}\n')
    with serve() as gone:
        url = gone.url
    cases = {
        ("run", "align.charter"): "answers and judge.model and judge.connection.base_url must be set",
        tuple(words(url, "charter=empty.md")): "empty.md has no article",
        tuple(words(url, "charter=package:other")): "package:apertus",
        tuple(words(url, "rating.articles=1,9")): "no article 9",
        tuple(words(url, "answers=none.jsonl")): "none.jsonl does not exist",
        tuple(words(url, "validation=none", "answers=prompts.jsonl")): "no row with an answer: prompts.jsonl, row 1",
        tuple(words(url, "judge.connection.api_key_env=NOT_SET")): "NOT_SET is not set",
        tuple(words(url, f"judge.connection.api_key_env={SECRET}")): "value not shown",
        tuple(words(url)): "cannot be reached",
    }  # fmt: skip
    for number, (arguments, message) in enumerate(cases.items()):
        done = stamm(*arguments, "--out", f"runs/{number}")
        assert done.returncode in (1, 2), message
        assert message in done.stderr
        assert SECRET not in done.stderr
        assert sum(each.startswith("stamm: ") for each in done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_model_on_this_machine_judges(stamm: Stamm, tmp_path: Path) -> None:
    """An untrained one knows nothing: it is refused, by default because digits are improbable."""
    write(tmp_path, (3, 8), prompts=1)
    (tmp_path / "model").mkdir()
    untrained_run(tmp_path / "model")
    local = [
        "run", "align.charter", "answers=answers.jsonl", "charter=charter.md", "judge=LocalJudge",
        "judge.model=model", "validation.chains=1", "validation.pairwise=none", "rating.top=0",
    ]  # fmt: skip
    short = stamm(*local)
    assert short.returncode == 1
    assert "exceed the judge's context of 160" in short.stderr
    config = checked_config(tmp_path / "model" / "model")
    decoder = build_decoder(replace(config, max_context=8192), seed=2)
    save_decoder(decoder, tmp_path / "model" / "model")
    prose = stamm(*local)  # the weights have changed: the step is done again
    assert prose.returncode == 1
    assert "× prose (good_answers.jsonl, row 1, step 0, article 1" in prose.stderr
    more = ("rating.min_digit_mass=0", "validation.min_ordered=0", "--out", "runs/any")
    done = stamm(*local, *more)
    assert done.returncode == 0, done.stderr
    judged = json.loads((tmp_path / "runs" / "any" / "judge" / "judge.json").read_text())
    assert judged["judge"]["weights_sha256"] == weights_sha256(tmp_path / "model" / "model")
    assert judged["pointwise_all"]["pairs"] == 36
    assert len(lines(tmp_path / "runs" / "any" / "charter" / "rewards.jsonl")) == 2
