"""Documents of another pipeline under the screen: the same verdicts as from a file, told in metadata."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

import stamm.corpus.adapters.document as adapter
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.adapters.document import check_files, filter_document, replace_personal_data
from stamm.corpus.config import CorpusConfig, FilterConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.ledger import REASONS
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import FieldNames, ReadLimits
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import QualityConfig

MAIL = "anna.meier@firma-meier.ch"
PROSE = (
    "The bridge over the river was closed in the spring because its deck had to be renewed. People "
    "who wanted to reach the market walked along the old path, and the shops on that side sold more "
    "than they had for years. When the work was done the council asked whether the path should stay "
    "open, and most of those who answered said that they would like to keep it."
)
Row = dict[str, Any]


@dataclass
class Given:
    """A document as another pipeline holds it."""

    text: str
    id: str = "a/0"
    metadata: Row = field(default_factory=dict)


@pytest.fixture
def config(write_jsonl: Callable[..., str]) -> FilterConfig:
    snapshot = write_jsonl(
        {
            "url": "https://closed.example/robots.txt",
            "status": 200,
            "fetched": "2026-01-02",
            "text": "User-agent: *\nDisallow: /\n",
        },
        {
            "url": "https://open.example/robots.txt",
            "status": 404,
            "fetched": "2026-01-02",
            "text": "",
        },
        name="robots.jsonl",
    )
    questions = write_jsonl({"id": "q1", "text": PROSE.partition(".")[0]}, name="questions.jsonl")
    return FilterConfig(
        inputs=("datatrove",),
        consent=ConsentConfig(robots=(snapshot,)),
        licences=LicenceConfig(),
        quality=QualityConfig(),
        contamination=ContaminationConfig(sets=(EvaluationSet(name="asked", file=questions),)),
    )


def open_page(text: str, **more: Any) -> Given:
    return Given(text, metadata={"url": "https://open.example/a", "licence": "CC0-1.0", **more})


def test_each_drop_has_a_reason_of_the_ledger(config: FilterConfig) -> None:
    clean = replace(config, contamination=None)
    given = {
        "": (clean, open_page(PROSE)),
        "robots_disallow": (clean, Given(PROSE, metadata={"url": "https://closed.example/a"})),
        "unknown_host": (clean, Given(PROSE, metadata={"url": "https://nobody.example/a"})),
        "licence_denied": (clean, open_page(PROSE, licence="CC-BY-NC-4.0")),
        "licence_unknown": (clean, open_page(PROSE, licence="")),
        "quality": (clean, open_page("buy now " * 200)),
        "contaminated": (config, open_page(PROSE)),
        "too_short": (clean, open_page(" ")),
        "bad_url": (clean, Given(PROSE, metadata={"url": ["https://open.example/a"]})),
        "field_too_long": (clean, open_page(PROSE, date="x" * 5000)),
        "no_text": (clean, open_page(cast(str, None))),
        "line_too_long": (replace(clean, limits=ReadLimits(line_bytes=200)), open_page(PROSE)),
    }
    found = {filter_document(document, how): document for how, document in given.values()}
    assert list(found) == list(given)
    for reason, document in found.items():
        assert document.metadata["stamm_reason"] == reason
        assert document.metadata["stamm_decision"] == ("dropped" if reason else "kept")
        assert not reason or reason in REASONS
    assert "asked q1" in found["contaminated"].metadata["stamm_detail"]
    assert found["robots_disallow"].metadata["stamm_rule"].startswith("Disallow: /")


def test_the_same_verdict_and_columns_as_from_a_file(
    config: FilterConfig, write_jsonl: Callable[..., str], build: Any
) -> None:
    rows: list[Row] = [
        {
            "text": PROSE,
            "url": "https://open.example/a",
            "license": "CC0-1.0",
            "date": "2026-01-05",
        },
        {"text": f"{PROSE} Write to {MAIL}.", "url": "https://open.example/b", "licence": "MIT"},
        {"text": PROSE, "url": "https://closed.example/a", "licence": "MIT"},
        {"text": "word " * 80, "url": "https://open.example/c", "licence": "MIT"},
    ]
    config = replace(config, contamination=None)
    name = write_jsonl(*rows)
    whole = CorpusConfig(
        inputs=(name,),
        consent=config.consent,
        licences=config.licences,
        quality=config.quality,
        dedup=None,
        held_out=0.0,
    )
    documents, ledger, _ = build(whole)
    given = [Given(row["text"], metadata={k: row[k] for k in row if k != "text"}) for row in rows]
    kept = [document for document in given if not filter_document(document, config)]
    assert [document.text for document in kept] == [row["text"] for row in documents]
    for document, row in zip(given, ledger, strict=True):
        told = {k[6:]: v for k, v in document.metadata.items() if k.startswith("stamm_")}
        assert len(told) > 25
        assert told == {name: row[name] for name in told}
    assert not {"stamm_split", "stamm_input_file", "stamm_probe_id"} & given[0].metadata.keys()


def test_a_kept_text_has_its_markers_and_a_dropped_one_is_left(config: FilterConfig) -> None:
    config = replace(config, contamination=None)
    kept, dropped = open_page(f"{PROSE} {MAIL}"), open_page(f"{PROSE} {MAIL}", licence="")
    assert (filter_document(kept, config), filter_document(dropped, config)) == (
        "",
        "licence_unknown",
    )
    assert kept.text == f"{PROSE} <email-pii>"
    assert kept.metadata["stamm_pii_email"] == 1
    assert dropped.text == f"{PROSE} {MAIL}"


def test_columns_can_stand_in_a_table_whatever_was_decided(config: FilterConfig) -> None:
    kept, dropped = open_page(PROSE), open_page("")
    filter_document(kept, replace(config, contamination=None))
    filter_document(dropped, config)
    kinds = [{k: type(v) for k, v in d.metadata.items()} for d in (kept, dropped)]
    assert kinds[0] == kinds[1]
    assert set(kinds[0].values()) <= {str, int, float}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("deu_Latn", "deu_Latn"),
        ("de", "deu_Latn"),  # as datatrove's ft176 says it
        ("deu", "deu_Latn"),  # as its glotlid does, the script beside it
        ("de-CH", "deu_Latn"),
        ("xx", "eng_Latn"),  # no language: identified
        ("", "eng_Latn"),
        (7, "eng_Latn"),
        (None, "eng_Latn"),
    ],
)
def test_a_language_is_known_by_its_tag(config: FilterConfig, said: object, known: str) -> None:
    document = open_page(PROSE, language=said)
    filter_document(document, replace(config, contamination=None, quality=None))
    assert document.metadata["stamm_language"] == known
    assert document.metadata["language"] == said


def test_a_document_cannot_speak_for_the_ledger(config: FilterConfig) -> None:
    said = {
        f"stamm_{name}": "forged" for name in ("reason", "decision", "consent", "rule", "agent")
    }
    document = open_page(PROSE, stamm_toxicity=1.0, **said)
    document.metadata["text"] = "another text"
    assert filter_document(document, replace(config, contamination=None)) == ""
    assert "forged" not in document.metadata.values()
    assert document.metadata["stamm_toxicity"] == -1.0
    assert document.text == PROSE


@pytest.mark.parametrize("text", ["\ud800 half of a pair " + MAIL, "\0" * 500 + MAIL, "‮" + MAIL])
def test_hostile_texts_lose_their_personal_data(config: FilterConfig, text: str) -> None:
    plain = replace(config, quality=None, contamination=None)
    one, other = open_page(text), open_page(text)
    assert filter_document(one, plain) == ""
    counts = replace_personal_data(other, PiiConfig(), FieldNames())
    assert one.text == other.text
    assert MAIL not in one.text
    one.text.encode()
    assert counts == {"email": 1, "ip": 0, "iban": 0, "card": 0, "phone": 0}
    assert json.dumps(other.metadata).count("stamm_pii_") == 5


def test_what_is_not_asked_for_may_be_anything(config: FilterConfig) -> None:
    strange: Any = {"url": ["no", "address"], 7: object(), None: {"a", "b"}, "x": float("nan")}
    document = Given(PROSE, metadata=dict(strange))
    assert filter_document(document, config) == "bad_url"
    assert {key: document.metadata[key] for key in strange} == strange


def test_two_screens_in_turns_build_their_tools_once(
    config: FilterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    own = adapter.load_policies
    monkeypatch.setattr(adapter, "load_policies", lambda *a: built.append(a) or own(*a))
    strict = replace(config, shortest=10_000)
    for _ in range(3):
        for how in (replace(config, contamination=None), strict):
            filter_document(open_page(PROSE), how)
    assert len(built) == 2


def test_files_are_missed_before_a_worker_starts(config: FilterConfig, tmp_path: Path) -> None:
    check_files(config)
    gone = str(tmp_path / "gone.jsonl")
    for wrong in (
        replace(config, consent=ConsentConfig(robots=(gone,))),
        replace(config, consent=ConsentConfig(domains=(gone,))),
        replace(
            config, contamination=ContaminationConfig(sets=(EvaluationSet(name="a", file=gone),))
        ),
    ):
        with pytest.raises(DataError, match=r"gone\.jsonl"):
            check_files(wrong)


def test_without_datatrove_the_door_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "stamm.corpus.adapters.datatrove"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for known in [one for one in sys.modules if one.partition(".")[0] == "datatrove"]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, "datatrove", None)
    with pytest.raises(ConfigError, match=r"pip install \"datatrove\[io,processing\]\""):
        import_module(name)
    assert name not in sys.modules


@pytest.mark.parametrize("text", [None, 7, b"bytes", ["a"]])
def test_a_document_without_a_text_is_dropped_and_stops_nothing(
    config: FilterConfig, text: Any
) -> None:
    document = Given(text)
    assert filter_document(document, config) == "no_text"
    counts = replace_personal_data(document, PiiConfig(), FieldNames())
    assert set(counts.values()) == {0}
    assert document.text == text


def test_a_document_without_metadata_gets_some(config: FilterConfig) -> None:
    judged, replaced = (Given(f"{PROSE} {MAIL}", metadata=cast("Row", None)) for _ in range(2))
    config = replace(config, licences=None, contamination=None)
    assert filter_document(judged, config) == "no_url"
    config = replace(config, consent=replace(config.consent, no_url="allow"))
    assert filter_document(judged, config) == ""
    assert judged.metadata["stamm_decision"] == "kept"
    assert replace_personal_data(replaced, PiiConfig(), FieldNames())["email"] == 1
    assert replaced.metadata["stamm_pii_email"] == 1


def test_an_opt_out_inside_an_object_of_the_metadata_is_honoured(config: FilterConfig) -> None:
    document = Given(PROSE, metadata={"url": "https://open.example/", "crawl": {"optedOut": True}})
    assert filter_document(document, config) == "row_opt_out"
