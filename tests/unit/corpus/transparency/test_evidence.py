"""Data card and public summary: filled from the ledger alone, with open questions, never contradicted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are another package
from ledgers import dropped, kept, planted, write_corpus, write_pack

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.ledger import REASONS
from stamm.corpus.transparency.config import EvidenceConfig, Kind, SourceKind
from stamm.corpus.transparency.facts import KINDS, OPT_OUTS
from stamm.corpus.transparency.job import evidence
from stamm.corpus.transparency.training_summary import size_band
from stamm.runs.job import Workspace

HOSTILE = "<script>alert(1)</script>|`x`\n# a [b](javascript:c) \x1b[2J\u202e: - !!python/object"
FILES = ("datacard.md", "domains.jsonl", "training_summary.json", "training_summary.md")

ROWS = [
    *(kept(host=f"site{i}.example", bytes_out=100 + i, source="crawl-1") for i in range(30)),
    *(kept(host="", source="books", licence="", language="deu_Latn", date="") for _ in range(5)),
    kept(source="books", consent="unknown_host", robots_read="", pii_email=3, language="roh_Latn"),
    dropped("robots_disallow", consent="robots_disallow", agent="GPTBot, CCBot"),
    dropped("exact_duplicate"),
    planted(),
]


def told(root: Path, config: EvidenceConfig | None = None, **more: Any) -> dict[str, str]:
    """The files that the job leaves."""
    rows = more.pop("rows", ROWS)
    inputs = {"corpus": root / "corpus"}
    if not inputs["corpus"].exists():
        write_corpus(inputs["corpus"], rows)
    if "tokens" in more:
        inputs["pack"] = root / "pack"
        if not inputs["pack"].exists():
            write_pack(inputs["pack"], more["tokens"])
    out = root / more.get("out", "evidence")
    out.mkdir()
    evidence(config or EvidenceConfig(), Workspace(folder=out, inputs=inputs))
    assert tuple(sorted(path.name for path in out.iterdir())) == FILES
    return {name: (out / name).read_text() for name in FILES}


def answers(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Fields by section number and position."""
    summary = json.loads(files["training_summary.json"])
    return {
        f"{section['number']}/{place}": field
        for section in summary["sections"]
        for place, field in enumerate(section["fields"])
    }


def kinds(**assigned: Kind) -> tuple[SourceKind, ...]:
    return tuple(SourceKind(source=f"{name}*", kind=kind) for name, kind in assigned.items())


def test_the_sections_of_the_template(tmp_path: Path) -> None:
    files = told(tmp_path, tokens=1000)
    headings = re.findall(r"^#+ ([0-9.]+)\. ", files["training_summary.md"], re.M)
    assert headings == [
        "1", "1.1", "1.2", "1.3", "2", "2.1", "2.2", "2.2.1", "2.2.2", "2.3", "2.4", "2.5", "2.6",
        "3", "3.1", "3.2", "3.3",
    ]  # fmt: skip
    assert "Article 53(1)(d)" in files["training_summary.md"]
    assert "C(2025) 5235 final" in files["training_summary.md"]


def test_what_the_ledger_does_not_know_stays_a_question(tmp_path: Path) -> None:
    files = told(tmp_path)
    found = answers(files)
    open_ones = [field for field in found.values() if field["answer"] is None]
    assert json.loads(files["training_summary.json"])["unanswered"] == len(open_ones) > 10
    assert all(field["set"].startswith("evidence.") for field in open_ones)
    named = {field["set"].removeprefix("evidence.") for field in open_ones}
    assert named <= set(to_plain(EvidenceConfig()))
    assert files["training_summary.md"].count("> Not in the ledger.") == len(open_ones)
    assert f"{len(open_ones)} questions are open: this is a draft." in files["training_summary.md"]


def test_every_question_can_be_answered(tmp_path: Path) -> None:
    config = EvidenceConfig(
        provider="A house", contact="desk@house.example", representative="none: in the Union",
        model="Stamm 1", dependencies="none", placed="2026-08-02", version="1", updated="2026-08-03",
        content="pages", sources=kinds(crawl="crawled", books="public"), latest="2024-03",
        collected_from="2024-01", collected_until="2024-03", continuous=False, crawlers=("StammBot",),
        crawler_purpose="training", crawler_behaviour="asks robots.txt", signatory=False,
        opt_outs="asked", illegal_content="a list", comments="-",
    )  # fmt: skip
    files = told(tmp_path, config, tokens=2 * 10**9)
    assert [f for f in answers(files).values() if f["answer"] is None] == []
    assert "draft" not in files["training_summary.md"]
    assert "## Open questions\n\nNone." in files["datacard.md"]
    for words in (
        "A house", "1 billion to 10 trillion tokens: 2,000,000,000 tokens", "StammBot",
        "Of the 24 official languages of the Union 2 occur.",
    ):  # fmt: skip
        assert words in files["training_summary.md"], words


def test_sources_answer_by_their_kinds(tmp_path: Path) -> None:
    config = EvidenceConfig(sources=kinds(crawl="crawled", books="licensed"))
    found = answers(told(tmp_path, config))
    yes = {key: (f["answer"], f["origin"]) for key, f in found.items() if key.endswith("/0")}
    assert yes["2.1/0"] == ("No", "ledger")
    assert yes["2.2.1/0"] == ("Yes", "ledger")
    assert yes["2.2.2/0"] == ("No", "ledger")
    assert yes["2.3/0"] == ("Yes", "ledger")
    assert yes["2.4/0"] == yes["2.5/0"] == ("No", "ledger")
    assert yes["2.6/0"] == ("Yes", "ledger")  # planted passages
    assert found["2.2.1/2"]["tables"][0]["rows"] == [
        ["books", "(unstated)", 5, 500],
        ["books", "CC-BY-4.0", 1, 100],
    ]
    assert not [key for key in found if key.startswith("2/")]


def test_unassigned_sources_are_open_questions(tmp_path: Path) -> None:
    config = EvidenceConfig(sources=kinds(crawl="crawled"), user=False)
    found = answers(told(tmp_path, config))
    assert "They hold 6 of 36 documents" in found["2/0"]["asks"]
    assert [row[0] for row in found["2/0"]["tables"][0]["rows"]] == ["books", "books"]
    assert found["2.1/0"]["answer"] is None
    assert (found["2.4/0"]["answer"], found["2.4/0"]["origin"]) == ("No", "provider")


def test_the_numbers_are_those_of_the_ledger(tmp_path: Path) -> None:
    files = told(tmp_path, tokens=1234)
    assert "38 documents came in, 36 stayed" in files["datacard.md"]
    assert "The training stream has 1,234 tokens" in files["datacard.md"]
    found = answers(files)
    assert found["1.3/1"]["answer"].startswith("Less than 1 billion tokens: 1,234 tokens")
    assert found["1.3/4"]["answer"].startswith("The latest date of a kept document is")
    assert "2024-03-01; 5 of 36" in found["1.3/4"]["answer"]
    reserved = found["3.1/1"]
    assert reserved["answer"] == (
        "Left out because of a reservation: 1 document. "
        "Kept without a robots.txt that allows it: 1 document."
    )
    assert reserved["tables"][2]["rows"] == [["CCBot", 1], ["GPTBot", 1]]
    assert ["email", 3] in found["3.3/0"]["tables"][0]["rows"]
    assert found["2.6/1"]["answer"].startswith("1 passage planted on purpose")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"opt_outs_removed": False}, r"opt_outs_removed = False, but 1 documents were dropped"),
        ({"personal_data_removed": False}, r"personal_data_removed = False, but 3 values"),
        ({"other": False}, r"other = False, but 1 passages were planted"),
        ({"languages": 1811}, r"languages = 1811, but the kept documents are in 3"),
        ({"latest": "2023-12"}, r"latest = 2023-12, but a kept document is of 2024-03-01"),
        ({"crawled": False, "crawlers": ("B",)}, r"crawled = False, but 1 crawlers are named"),
        (
            {"crawled": False, "sources": kinds(crawl="crawled")},
            r"crawled = False, but 30 documents are of a source that is assigned to it",
        ),
        (
            {"user": True, "sources": kinds(crawl="crawled", books="public")},
            r"user = True, but every source is assigned to another kind",
        ),
    ],
)
def test_a_claim_that_the_ledger_contradicts_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        told(tmp_path, EvidenceConfig(**config))
    assert not (tmp_path / "evidence" / "datacard.md").exists()


def test_opt_outs_are_not_claimed_without_any_robots_txt(tmp_path: Path) -> None:
    rows = [kept(consent="unknown_host", robots_read="")]
    with pytest.raises(ConfigError, match=r"opt_outs_removed = True, but .* no website's answer"):
        told(tmp_path, EvidenceConfig(opt_outs_removed=True), rows=rows)


def test_all_contradictions_are_reported_at_once(tmp_path: Path) -> None:
    config = EvidenceConfig(opt_outs_removed=False, languages=9)
    with pytest.raises(ConfigError, match=r"opt_outs_removed.*; evidence\.languages = 9"):
        told(tmp_path, config)


def test_true_claims_are_taken(tmp_path: Path) -> None:
    config = EvidenceConfig(
        opt_outs_removed=True, personal_data_removed=True, languages=3, latest="2024-03",
        sources=kinds(crawl="crawled", books="public"), crawled=True, public=True, user=False,
        service=False, synthetic=False, other=True, licensed=False, private=False,
    )  # fmt: skip
    assert answers(told(tmp_path, config))["2.4/1"]["answer"] == "No"


def test_the_same_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    assert told(tmp_path, tokens=5) == told(tmp_path, tokens=5, out="again")


def test_hostile_text_in_every_field(tmp_path: Path) -> None:
    fields = ("host", "source", "licence", "language", "consent", "agent", "robots_read", "date")
    hostile = dict.fromkeys((*fields, "url", "rule", "detail"), HOSTILE)
    rows = [kept(**hostile), dropped(HOSTILE, **hostile), dropped("robots_disallow", **hostile)]
    config = EvidenceConfig(
        sources=(SourceKind(source="*script*", kind="public", link=HOSTILE),),
        model=HOSTILE, provider=HOSTILE, licence=HOSTILE, version=HOSTILE, comments=HOSTILE,
    )  # fmt: skip
    files = told(tmp_path, config, rows=rows)
    for name in ("datacard.md", "training_summary.md"):
        text = files[name].partition("\n---\n")[2] if name == "datacard.md" else files[name]
        assert not {c for c in text if not c.isprintable()} - {"\n"}
        outside = re.sub(r"(`+)(?!`).*?[^`]\1(?!`)", "", text)
        assert not re.search(r"(?<!\\)<|(?<!\\)\]\(", outside), name
        assert not re.search(r"^# a", text, re.M)
    front = yaml.safe_load(files["datacard.md"].split("---\n")[1])
    assert front["license"] == HOSTILE
    assert front["pretty_name"] == HOSTILE
    assert front["size_categories"] == ["n<1K"]


def test_the_front_matter_names_languages_as_the_hub_does(tmp_path: Path) -> None:
    front = yaml.safe_load(told(tmp_path)["datacard.md"].split("---\n")[1])
    assert front["language"] == ["deu", "eng", "roh"]
    assert front["license"] == "unknown"
    assert front["task_categories"] == ["text-generation"]


def test_a_language_that_yaml_takes_for_a_truth_stays_text(tmp_path: Path) -> None:
    rows = [kept(language="no"), kept(language="on_Latn")]
    front = yaml.safe_load(told(tmp_path, rows=rows)["datacard.md"].split("---\n")[1])
    assert front["language"] == ["no", "on"]


def test_the_front_matter_of_a_corpus_that_names_nothing(tmp_path: Path) -> None:
    rows = [kept(language="", source="", licence="", host="", date="")]
    model = "Mödel 😀\x1b[31m\n'\"\u2028\U000e0041"
    config = EvidenceConfig(model=model, licence="no")
    files = told(tmp_path, config, rows=rows)
    front = yaml.safe_load(files["datacard.md"].split("---\n")[1])
    assert "language" not in front
    assert front["pretty_name"] == model
    assert {c for c in files["datacard.md"] if not c.isprintable()} == {"\n"}
    assert front["license"] == "no"
    card = files["datacard.md"]
    assert "1 document came in, 1 stayed (100 B of text in 1 language)." in card
    assert "| `(unnamed)` | `(unstated)` | 1 | 100 |" in card
    assert "| `und` | 1 | 100 |" in card
    assert "|  |" not in card.partition("## Languages")[2].partition("## Domains")[0]


def test_a_language_cannot_speak_in_a_sentence(tmp_path: Path) -> None:
    link = "@everyone see https://evil.example"
    page = told(tmp_path, rows=[kept(language=link)])["training_summary.md"]
    assert page.count(link) == page.count(f"`{link}`") == 1
    assert "one of another name has most text" in page


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"tokens_by_language": 7}, "tokens_by_language holds a plain value"),
        (
            {"tokens_by_language": {"eng_Latn": "<b>many</b>"}},
            "'<b>many</b>' is not a whole number",
        ),
        ({"tokens_by_language": {"eng_Latn": -1}}, "tokens_by_language = .* is not a whole number"),
        ({"tokens": "5"}, "tokens = '5' is not a whole number"),
        ({"tokens": -1}, "tokens = -1 is not a whole number from 0"),
        ({"stages": [{"documents": 1}]}, r"stages\[0\] has no 'tokens'"),
        ({"stages": [{"documents": 1, "tokens": None}]}, "tokens = None is not a whole number"),
        ({"stages": 7}, "stages = 7 is not a list"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    tmp_path: Path, train: dict[str, Any], message: str
) -> None:
    write_corpus(tmp_path / "corpus", ROWS)
    pack = write_pack(tmp_path / "pack", 5)
    plain = json.loads((pack / "manifest.json").read_text())
    plain["splits"]["train"] |= train
    (pack / "manifest.json").write_text(json.dumps(plain))
    with pytest.raises(DataError, match=rf"manifest.json, splits, train.*{message}"):
        told(tmp_path, tokens=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_kept", "5"), ("n_in", None), ("bytes_kept", True), ("pii_replaced", []), ("n_probes", -1)],
)
def test_a_summary_that_lies_is_refused(tmp_path: Path, name: str, value: object) -> None:
    corpus = write_corpus(tmp_path / "corpus", ROWS)
    plain = json.loads((corpus / "summary.json").read_text()) | {name: value}
    (corpus / "summary.json").write_text(json.dumps(plain))
    with pytest.raises(
        DataError, match=rf"summary.json(: {name} = .* is not|, {name} holds a list)"
    ):
        told(tmp_path)


def test_a_ledger_that_differs_from_its_summary_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", ROWS)
    summary = json.loads((corpus / "summary.json").read_text())
    (corpus / "summary.json").write_text(json.dumps({**summary, "n_kept": 35}))
    with pytest.raises(DataError, match=r"has 35 kept documents, the ledger 36"):
        told(tmp_path)


def test_a_corpus_of_which_nothing_is_left_has_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no kept document"):
        told(tmp_path, rows=[dropped("deletion_request")])


def test_a_summary_or_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", ROWS)
    pack = write_pack(tmp_path / "pack", 5)
    (pack / "manifest.json").write_text('{"schema": 2, "splits": []}')
    with pytest.raises(DataError, match=r"manifest.json, splits holds a list, not an object"):
        told(tmp_path, tokens=5)
    (corpus / "summary.json").write_text("[]")
    with pytest.raises(DataError, match=r"summary.json holds a list, not an object"):
        told(tmp_path, out="again")


@pytest.mark.parametrize(
    ("tokens", "band"),
    [
        (10**9 - 1, "Less than 1 billion tokens"),
        (10**9, "1 billion to 10 trillion tokens"),
        (10**13, "1 billion to 10 trillion tokens"),
        (10**13 + 1, "More than 10 trillion tokens"),
    ],
)
def test_bands_of_size(tokens: int, band: str) -> None:
    assert size_band(tokens) == band


@pytest.mark.parametrize(
    "wrong",
    [
        {"latest": "March 2024"},
        {"placed": "2026-13-01"},
        {"collected_from": "2024-05", "collected_until": "2024-04"},
        {"provider": "x" * 10_001},
        {"languages": 0},
        {"crawlers": ("",)},
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EvidenceConfig(**wrong)


def test_the_configuration_goes_to_plain_and_back() -> None:
    config = EvidenceConfig(sources=kinds(a="public"), user=True, crawlers=("x",), languages=3)
    assert from_plain(EvidenceConfig, json.loads(json.dumps(to_plain(config)))) == config


def test_opt_outs_and_kinds_exist() -> None:
    assert set(OPT_OUTS) <= set(REASONS)
    assert all(hasattr(EvidenceConfig(), kind) for kind in KINDS)
