"""`stamm show ledger`: one question, one answer, whatever stands in the pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stamm.cli.main import main
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from tests.unit.align.prepared import chat, prepare
from tests.unit.small_corpus import build_corpus, pack_corpus

ROWS = [
    {"text": f"Page {n} tells of {n * n} rivers.", "url": f"https://a.example/{n}"}
    for n in range(30)
]
HOSTILE = {"text": "short", "url": "https://a.example/\x1b[31m'; drop table ledger; --"}
TWIN = {"text": "page 3 TELLS of 9 rivers.", "url": "https://b.example/3"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    source = root / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in (*ROWS, HOSTILE, TWIN)))
    robots = root / "robots.jsonl"
    answer = {
        "url": "https://a.example/robots.txt",
        "status": 200,
        "fetched": "2026-10-10",
        "text": "User-agent: CCBot\nDisallow: /1\n",
    }
    robots.write_text(json.dumps(answer) + "\n")
    consent = ConsentConfig(robots=(str(robots),), unknown_host="allow")
    build_corpus(CorpusConfig(inputs=(str(source),), consent=consent), root)
    (root / "tokenizer").mkdir()
    trained = train_tokenizer_on(TokenizerConfig(vocab_size=340), [r["text"] for r in ROWS])
    (root / "tokenizer" / "tokenizer.json").write_text(trained, encoding="utf-8")
    pack_corpus(PackConfig(), root)
    return root


def ask(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["show", "ledger", *words]) == code
    shown = capsys.readouterr().out
    return shown if "--json" in words else " ".join(shown.split())


def test_a_refused_page_names_rule_agent_and_date(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ask(capsys, str(run), "url=https://a.example/1")
    for part in (
        "dropped: robots_disallow (robots.txt disallows at least one agent)",
        "Disallow: /1 (group ccbot) at https://a.example/robots.txt",
        "CCBot",
        "2026-10-10",
        "1 documents",
    ):
        assert part in said
    assert "train-" not in said


def test_a_kept_page_stands_where_its_tokens_are(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(ask(capsys, str(run), "decision=kept", "limit=100", "--json"))
    assert found["count"] == len(found["rows"])
    for row in found["rows"]:
        (stretch,) = row["tokens"]
        assert stretch["shard"].startswith(row["split"])
        assert stretch["stop"] > stretch["start"]


def test_patterns_limits_and_several_conditions(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ask(capsys, str(run), "url=https://a.example/*", "limit=2")
    assert said.count(" identifier ") == 2
    assert "31 documents, 29 more: limit=31" in said
    assert "0 documents" in ask(capsys, str(run), "host=b.example", "decision=none", code=1)
    twin = ask(capsys, str(run), "reason=exact_duplicate")
    assert "same text as" in twin


def test_addresses_are_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ask(capsys, str(run), "url=https://a.example/*drop table*")
    assert "1 documents" in said
    assert "\x1b" not in said
    assert "0 documents" in ask(capsys, str(run), "url=https://a.example/[12]*", code=1)
    assert ask(capsys, str(run), "url='; drop table ledger; --", code=1).strip() == "0 documents"


def test_alignment_rows_are_found_beside_documents_and_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        chat("2+2?", "4", id="a1", source="tasks", licence="mit"),
        chat("2+3?", "5", id="a2", source="tasks", licence="cc-by-sa-4.0"),
    ]
    prepare(tmp_path, rows, refused_licences=("share-alike",))
    kept = ask(capsys, str(tmp_path), "path=a1")
    assert "1 documents" in kept
    for part in ("decision kept", "licence MIT", "rows.jsonl, record 1"):
        assert part in kept
    said = ask(capsys, str(tmp_path), "source=tasks", "decision=dropped")
    assert "licence_denied (the licence is not allowed)" in said
    assert "refused by 'share-alike'" in said

    both = tmp_path / "both"
    both.mkdir()
    for name, folder in (("corpus", run / "corpus"), ("prepared", tmp_path / "prepared")):
        (both / name).symlink_to(folder)
    assert f"{len(ROWS) + 4} documents" in ask(capsys, str(both))
    (both / "set-aside").mkdir()
    (both / "set-aside" / "prepared").symlink_to(tmp_path / "prepared")
    assert f"{len(ROWS) + 4} documents" in ask(capsys, str(both))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`show ledger` needs a run"),
        (["url=x"], "`show ledger` needs a run"),
        (["{run}", "urll=x"], "has no column 'urll' to search. Did you mean 'url'?"),
        (["{run}", "x"], "'x' is not a column=value pair"),
        (["{run}", "limit=0"], "limit=0 is not a number of documents"),
        (["/nowhere", "url=x"], "/nowhere contains neither a corpus nor prepared alignment data"),
    ],
)
def test_misuse_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["show", "ledger", *(word.format(run=run) for word in words)]) in (1, 2)
    assert message in capsys.readouterr().err
