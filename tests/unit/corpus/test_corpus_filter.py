"""Corpus filters of the user's own: the tutorial's code by the command line, identity, errors."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.corpus import document_filter as rules
from stamm.corpus.adapters.document import check_files, filter_document
from stamm.corpus.config import CorpusConfig, ProbesConfig, ReplayConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.corpus_filter import (
    BUILT_IN,
    FILLED,
    FILTER_COLUMNS,
    CorpusFilter,
    FilterDocument,
    FilterResult,
    load_filters,
)
from stamm.corpus.document_filter import ClassifierScores, ContaminationRule, built_in_filters
from stamm.corpus.filter_job import filter_inputs
from stamm.corpus.inputs import DEMO_PROBE_BOOKS
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.ledger import REASONS, LedgerRow
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.lookup import look_up
from stamm.corpus.opt_out_replay import replay
from stamm.corpus.page.tables import filter_columns
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.records import CorpusSummary
from stamm.corpus.steps import corpus_steps
from stamm.corpus.tables import read_parts
from stamm.runs.executors import LocalExecutor
from stamm.runs.job import Workspace
from tests.unit.small_corpus import build_corpus
from tests.unit.tutorials import tutorial_code

PLAIN = CorpusConfig(
    inputs=("none",), consent=ConsentConfig(unknown_host="allow"), language=None, held_out=0.0
)
FILTER = """
class Mine:
    name = "{name}"
    def __call__(self, document):
        {body}
"""
Row = dict[str, Any]
Write = Callable[..., str]
Build = Callable[[CorpusConfig], tuple[list[Row], list[Row], dict[str, Any]]]


def write_filter(folder: Path, body: str, name: str = "mine") -> str:
    path = folder / "mine.py"
    path.write_text(FILTER.format(name=name, body=body), encoding="utf-8")
    return f"{path}:Mine"


def rows(*texts: str) -> list[Row]:
    return [{"text": text, "url": f"https://a.org/{n}"} for n, text in enumerate(texts)]


def test_the_tutorials_filter_runs_from_the_command_line(
    tmp_path: Path,
    write_jsonl: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    second = tutorial_code("corpus_filter", 1).replace('    before = "quality"\n', "")
    code = tutorial_code("corpus_filter") + second
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    tables = [f"{n} {n + 1} 1848 37.5 2009 {n * n}" for n in range(40)]
    for part in ("a", "b"):
        prose = [f"Chapter {n} of part {part} is about rivers and lakes." for n in range(40)]
        write_jsonl(*rows(*prose, *tables), name=f"{part}.jsonl")
    command = ["run", "corpus.demo", "--out", "run"]
    command += ["corpus.filters=mine.py:TooManyDigits,mine.py:Letters"]
    command += ["corpus.inputs=a.jsonl,b.jsonl", "corpus.quality=none", "corpus.dedup=none"]
    command += [
        "corpus.consent.unknown_host=allow",
        "tokenizer.vocab_size=350",
        "execution.workers=2",
    ]
    command += ["corpus.probes=none", "corpus.canaries=none", "corpus.pii.phone=false"]
    assert main(command) == 0
    summary = json.loads((tmp_path / "run" / "corpus" / "summary.json").read_text())
    assert summary["dropped_by_reason"]["too_many_digits"]["documents"] == 80
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "too many digits" in page
    assert "Filters of your own" in page and ">letter share</th>" in page
    cards = [p.read_text(encoding="utf-8") for p in (tmp_path / "run" / "evidence").glob("*.md")]
    assert any("dropped by a corpus filter of the user's own" in card for card in cards)
    capsys.readouterr()
    assert main(["show", "ledger", "run", "reason=too_many_digits", "limit=1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "dropped: too_many_digits (dropped by a corpus filter of the user's own)" in shown
    assert re.search(r"detail +\d+% digits", shown)


def test_a_filter_reads_the_text_as_kept_and_its_detail_is_cleaned(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    body = (
        "return None if 'keep' in document.text else document.text + document.host + '\\x1b' * 999"
    )
    inputs = write_jsonl(*rows("Please keep this text.", "Write to a@example.org, then."))
    documents, ledger, summary = build(
        replace(PLAIN, inputs=(inputs,), filters=(write_filter(tmp_path, body),))
    )
    assert [row["text"] for row in documents] == ["Please keep this text."]
    assert [row["reason"] for row in ledger] == ["", "mine"]
    detail = ledger[1]["detail"]
    assert detail.startswith("Write to <email-pii>, then.a.org\\x1b\\x1b")
    assert len(detail) == 200
    assert summary["n_in"] == summary["n_kept"] + summary["dropped_by_reason"]["mine"]["documents"]


def test_filters_apply_in_order_and_a_corpus_without_documents_says_why(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    first = tmp_path / "first.py"
    first.write_text(FILTER.format(name="first", body="return ''"), encoding="utf-8")
    second = write_filter(tmp_path, "raise AssertionError")
    config = replace(PLAIN, inputs=(write_jsonl(*rows("One text.")),))
    with pytest.raises(
        DataError, match=r"no document was kept of 1: first 1 \(dropped by a corpus"
    ):
        build(replace(config, filters=(f"{first}:Mine", second)))


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_changed_filter_does_shards_again(
    tmp_path: Path, write_jsonl: Write, workers: int
) -> None:
    inputs = tuple(write_jsonl(*rows(f"Text {n}."), name=f"{n}.jsonl") for n in "ab")
    folder = tmp_path / "filtered"
    folder.mkdir()

    def screen(body: str) -> tuple[list[str], list[int]]:
        config = replace(PLAIN, inputs=inputs, filters=(write_filter(tmp_path, body),))
        place = Workspace(folder=folder, execution=LocalExecutor(workers=workers))
        filter_inputs(config.filter_config, place)
        manifests = sorted((folder / "manifests").iterdir())
        return (
            [row["reason"] for row in read_parts(folder, "ledger")],
            [path.stat().st_mtime_ns for path in manifests],
        )

    reasons, times = screen("return None")
    assert reasons == ["", ""]
    assert screen("return None") == (reasons, times)
    dropped, later = screen("return 'no'")
    assert dropped == ["mine", "mine"]
    assert all(new > old for new, old in zip(later, times, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_names_filter_document_and_line_and_loses_one_shard_only(
    tmp_path: Path, write_jsonl: Write, workers: int
) -> None:
    bad = write_jsonl(*rows("Fine.", "A bad text."), name="bad.jsonl")
    good = write_jsonl(*rows("Good."), name="good.jsonl")
    reference = write_filter(
        tmp_path,
        "return document.text.index('bad') and None if 'bad' in document.text and 1 / 0 else None",
    )
    config = replace(PLAIN, inputs=(bad, good), filters=(reference,))
    folder = tmp_path / "filtered"
    folder.mkdir()
    place = Workspace(folder=folder, execution=LocalExecutor(workers=workers))
    with pytest.raises(RunError) as error:
        filter_inputs(config.filter_config, place)
    line = error.value.line()
    assert re.search(r"filter: 1 of 2 shards failed: 00000 \(.*bad\.jsonl\)", line)
    assert re.search(
        r"corpus filter 'mine' failed on document [0-9a-f]{32}: ZeroDivisionError", line
    )
    assert f"{tmp_path / 'mine.py'}, line 5" in line
    assert sorted(p.stem for p in (folder / "manifests").iterdir()) == ["00001"]
    corrected = write_filter(tmp_path, "return None")
    filter_inputs(replace(config, filters=(corrected,)).filter_config, place)
    assert sorted(p.stem for p in (folder / "manifests").iterdir()) == ["00000", "00001"]


def test_a_result_of_another_type_is_refused(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    config = replace(PLAIN, inputs=(write_jsonl(*rows("One text.")),))
    with pytest.raises(
        RunError, match=r"corpus filter 'mine' returned bool for document [0-9a-f]{32}"
    ):
        build(replace(config, filters=(write_filter(tmp_path, "return True"),)))


def test_what_is_not_a_filter_is_refused_before_the_run(tmp_path: Path) -> None:
    def refused(reference: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            corpus_steps(replace(PLAIN, inputs=("package:pages.warc.gz",), filters=(reference,)))

    refused(f"{tmp_path}/none.py:Mine", r"none\.py does not exist")
    refused("no_such_package.module:Mine", r"no_such_package\.module cannot be imported")
    for name in ("too_short", "near_duplicate"):
        refused(write_filter(tmp_path, "return None", name), "is a reason of a built-in filter")
    for name in ("Too Short", "", "a" * 41, "../a"):
        refused(write_filter(tmp_path, "return None", name), "cannot be a reason of the ledger")
    mine = tmp_path / "mine.py"
    mine.write_text("class Mine:\n    name = 'mine'\nvalue = 3\n", encoding="utf-8")
    refused(f"{mine}:Mine", r"is not a corpus filter.*CorpusFilter declares: __call__, name")
    refused(f"{mine}:value", "is not a corpus filter")
    refused(f"{mine}:Other", "has no 'Other'")
    mine.write_text("class Mine(:\n", encoding="utf-8")
    refused(f"{mine}:Mine", r"SyntaxError.*mine\.py")
    with pytest.raises(ConfigError, match=r"must name Python classes: mine\.py:MyFilter"):
        replace(PLAIN, filters=("quality",))
    with pytest.raises(ConfigError, match="names a filter twice"):
        replace(PLAIN, filters=("a.py:A", "a.py:A"))


def test_two_filters_of_one_name_are_refused(tmp_path: Path) -> None:
    reference = write_filter(tmp_path, "return None")
    other = tmp_path / "other.py"
    other.write_text(FILTER.format(name="mine", body="return None"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is a reason of .*mine\.py:Mine"):
        load_filters((reference, f"{other}:Mine"))


def test_a_filter_is_an_external_file_of_the_step(tmp_path: Path) -> None:
    reference = write_filter(tmp_path, "return None")
    config = replace(PLAIN, inputs=("package:pages.warc.gz",), filters=(reference,))
    (screen,) = (step for step in corpus_steps(config) if step.name == "filter")
    assert screen.external[str(tmp_path / "mine.py")] == tmp_path / "mine.py"
    assert "mine" not in REASONS
    (found,) = load_filters((reference,))
    assert isinstance(found.function, CorpusFilter)


def test_columns_and_places_are_those_of_the_built_in_filters() -> None:
    config = replace(PLAIN, quality=QualityConfig(), licences=LicenceConfig())
    functions = {function.name: function for function in built_in_filters(config, None, None, None)}
    unloaded = {"contamination": ContaminationRule, "classifiers": ClassifierScores}
    assert set(functions) | set(unloaded) == set(BUILT_IN)
    declared = [getattr(one, "columns", {}) for one in (*functions.values(), *unloaded.values())]
    assert {name: value for columns in declared for name, value in columns.items()} == FILLED
    row = LedgerRow(document_id="", input_file="", input_position=0)
    assert {name: getattr(row, name) for name in FILLED} == FILLED
    reasons = [getattr(one, "reasons", (one.name,)) for one in functions.values()]
    assert {reason for each in reasons for reason in each} - {"language", "pii"} <= set(REASONS)


MOVED = """
def own(function, name, before):
    function.name, function.before = name, before
    return function

LICENCE = own(LicenceRule(LicenceConfig(unknown="allow")), "own_licence", "language")
QUALITY = own(QualityBoundsRule(QualityConfig(min_words=5)), "own_quality", "contamination")
PII = own(PiiMarkers(PiiConfig()), "own_pii", "")
"""


def test_built_in_filters_in_a_file_of_the_users_give_the_same_rows(
    tmp_path: Path, write_jsonl: Write
) -> None:
    prose = "The river rises in the hills and flows past {} old towns to the sea, {} miles away."
    texts = [prose.format(n, n * n) for n in range(6)]
    given = rows(*texts, f"{texts[0]} Write to a@example.org or 192.0.2.1, please.", "Too short.")
    for row, licence in zip(
        given, ("CC-BY-4.0", "CC-BY-NC-4.0", "", "MIT", "GPL-3.0"), strict=False
    ):
        row["licence"] = licence
    config = replace(PLAIN, inputs=(write_jsonl(*given),), dedup=None, language=LanguageConfig())
    built_in = replace(
        config, licences=LicenceConfig(unknown="allow"), quality=QualityConfig(min_words=5)
    )
    mine = tmp_path / "mine.py"
    mine.write_text(inspect.getsource(rules) + MOVED, encoding="utf-8")
    moved = replace(
        config,
        pii=PiiConfig(email=False, ip=False, iban=False, card=False, phone=False),
        filters=tuple(f"{mine}:{name}" for name in ("PII", "QUALITY", "LICENCE")),
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours, theirs = build_corpus(built_in, tmp_path / "a"), build_corpus(moved, tmp_path / "b")
    assert list(read_parts(ours, "documents")) == list(read_parts(theirs, "documents"))
    ledger = list(read_parts(theirs, "ledger"))
    assert {row["reason"] for row in ledger} == {"", "licence_denied", "own_quality"}
    assert {row["quality_basis"] for row in ledger} > {""}
    assert any(row["pii_email"] for row in ledger)
    named = {"own_quality": "quality"}
    renamed = [{**row, "reason": named.get(row["reason"], row["reason"])} for row in ledger]
    assert renamed == list(read_parts(ours, "ledger"))


COUNTED = """
from stamm.corpus.corpus_filter import FilterResult
class Mine:
    name = "mine"
    before = "{before}"
    reasons = ("only_digits",)
    columns = {{"digits": -1, "share": 0.0, "first": "", "language_other": ""}}
    def __call__(self, document):
        text = document.text
        digits = sum(map(str.isdigit, text))
        columns = {{"digits": digits, "share": digits / len(text), "first": text.split()[0]}}
        columns["language_other"] = "mine"
        if digits == len(text):
            return FilterResult(drop="", reason="only_digits", columns=columns)
        return FilterResult(text=text.replace("9", "nine"), columns=columns)
"""


@pytest.mark.slow
def test_a_filter_has_a_place_columns_and_reasons(
    tmp_path: Path, write_jsonl: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(COUNTED.format(before="pii"), encoding="utf-8")
    texts = ["Mail a99@example.org now.", "Plain words here.", "12345", "A 9 and a 9."]
    config = replace(
        PLAIN,
        inputs=(write_jsonl(*rows(*texts), b"no JSON"),),
        filters=(f"{mine}:Mine",),
        probes=ProbesConfig(books=DEMO_PROBE_BOOKS, passages_per_bucket=2, repeats=(0, 1, 4)),
    )
    corpus = build_corpus(config, tmp_path)
    ledger = [row for row in read_parts(corpus, "ledger") if row["consent"] != "planted"]
    assert [row["reason"] for row in ledger] == ["", "", "only_digits", "", "invalid_json"]
    assert [row["digits"] for row in ledger] == [2, 0, 5, 2, -1]
    assert [row["share"] for row in ledger] == [2 / 25, 0.0, 1.0, 2 / 12, 0.0]
    assert [row["language_other"] for row in ledger] == ["mine"] * 4 + [""]
    documents = [row["text"] for row in read_parts(corpus, "documents") if not row["probe_id"]]
    kept = ["Mail <email-pii> now.", "Plain words here.", "A nine and a nine."]
    assert sorted(documents) == sorted(kept)
    summary = read_record(CorpusSummary, corpus / "summary.json")
    assert filter_columns(summary).rows == (
        ("digits", "", "3", "0", "2", "2"),
        ("share", "", "3", "0", "0.08", "0.1667"),
        ("first", "A 1, Mail 1, Plain 1", "3", "", "", ""),
    )
    found = look_up(tmp_path, {"digits": "5"}, 5)
    assert [row["first"] for row in found.rows] == ["12345"]
    assert "digits" not in look_up(tmp_path, {"consent": "planted"}, 1).rows[0]
    assert main(["show", "ledger", str(tmp_path), "first=Mail"]) == 0
    assert re.search(r"share +0\.08\n", capsys.readouterr().out)
    # A replay keeps the columns.
    (tmp_path / "requests.txt").write_text("https://a.org/0\n", encoding="utf-8")
    (tmp_path / "replayed").mkdir()
    place = Workspace(
        folder=tmp_path / "replayed",
        inputs={"corpus": corpus},
        execution=LocalExecutor(workers=1),
    )
    replay(ReplayConfig(deletions=(str(tmp_path / "requests.txt"),)), place)
    replayed = [row for row in read_parts(place.folder, "ledger") if row["consent"] != "planted"]
    assert [row["digits"] for row in replayed] == [row["digits"] for row in ledger]
    summary = read_record(CorpusSummary, place.folder / "summary.json")
    assert summary.filter_columns["first"].values == {"A": 1, "Plain": 1}
    # Without a place it stands behind `pii`, where the address is a marker.
    mine.write_text(COUNTED.format(before="").replace('before = ""', ""), encoding="utf-8")
    corpus = build_corpus(config, tmp_path)
    ledger = [row for row in read_parts(corpus, "ledger") if row["consent"] != "planted"]
    assert [row["digits"] for row in ledger] == [0, 0, 5, 2, -1]


def test_the_tutorials_second_filter(tmp_path: Path, write_jsonl: Write, build: Build) -> None:
    (tmp_path / "mine.py").write_text(tutorial_code("corpus_filter", 1), encoding="utf-8")
    texts = ("A long hy\u00adphen.", "1848 1849 a", "12 34")
    config = replace(PLAIN, inputs=(write_jsonl(*rows(*texts)),))
    documents, ledger, _ = build(replace(config, filters=(f"{tmp_path}/mine.py:Letters",)))
    assert [row["text"] for row in documents] == ["A long hyphen."]
    assert [row["reason"] for row in ledger] == ["", "few_letters", "no_letters"]
    assert [row["letter_share"] for row in ledger] == [11 / 15, 1 / 11, 0.0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"digits": digits,', '"digts": 1,', "the column 'digts', which is not one of its columns"),
        ('"digits": digits,', '"digits": 0.5,', "digits = float, a column of int,"),
        ('reason="only_digits"', 'reason="digits"', "the reason 'digits', which is not one of its"),
        ('text.replace("9", "nine")', '""', "a text that is empty"),
        ("FilterResult(drop=''", "FilterResult(drop=1", "drop = int"),
        ('"share": digits / len(text)', '"share": float("nan")', "share = nan for document"),
        ('"share": digits / len(text)', '"share": -1e999', "share = -inf for document"),
        ('"digits": digits,', '"digits": 1 << 70,', "digits = a whole number of 71 bits for"),
        (
            "drop='', reason=\"only_digits\", columns=columns",
            "columns=None",
            "columns = NoneType for",
        ),
    ],
)
def test_a_result_that_was_not_declared_is_refused(
    tmp_path: Path, write_jsonl: Write, build: Build, old: str, new: str, said: str
) -> None:
    text = COUNTED.format(before="pii").replace('drop=""', "drop=''")
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new), encoding="utf-8")
    inputs = (write_jsonl(*rows("12345", "One text.")),)
    with pytest.raises(RunError, match=f"corpus filter 'mine' returned {said}"):
        build(replace(PLAIN, inputs=inputs, filters=(f"{tmp_path}/mine.py:Mine",)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('before = "pii"', 'before = "qualty"', "before = 'qualty'.* Did you mean 'quality'"),
        ('before = "pii"', "before = 3", "has before = 3"),
        ('("only_digits",)', '"only_digits"', "has reasons = 'only_digits'"),
        ('("only_digits",)', '("Only",)', "the reason 'Only', which cannot be one"),
        ('"first": ""', '"url": ""', "the column 'url', which cannot be one of the ledger's"),
        ('"first": ""', '"tokens": ""', "the column 'tokens', which cannot be one"),
        ('"first": ""', '"First": ""', "the column 'First', which cannot be one"),
        ('"first": ""', '"first": None', "the column 'first' of NoneType, not str, int or float"),
        ('"language_other": ""', '"language_other": 0', "'language_other' of int, not str"),
        ('{"digits": -1', '{"digits"}, {"digits": -1', "has columns = "),
        (
            '"share": 0.0',
            '"share": float("nan")',
            "the column 'share' = nan, which the ledger cannot",
        ),
    ],
)
def test_what_a_filter_cannot_declare_is_refused_before_the_run(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = COUNTED.format(before="pii")
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_filters((f"{tmp_path}/mine.py:Mine",))


def test_texts_of_columns_are_written_without_half_of_a_surrogate_pair(
    tmp_path: Path, write_jsonl: Write, build: Build
) -> None:
    text = COUNTED.format(before="pii").replace(
        '"first": text.split()[0]', '"first": "a\\udc80" + "b" * 300'
    )
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    inputs = (write_jsonl(*rows("One text.")),)
    _, ledger, summary = build(replace(PLAIN, inputs=inputs, filters=(f"{tmp_path}/mine.py:Mine",)))
    assert [row["first"] for row in ledger] == ["a\ufffd" + "b" * 300]
    assert summary["filter_columns"]["first"]["values"] == {"a\ufffd" + "b" * 198: 1}


def test_a_document_is_built_again_only_where_a_filter_changed_it() -> None:
    columns: dict[str, Any] = dict.fromkeys(FILTER_COLUMNS, "") | {
        "toxicity": -1.0,
        "quality": -1.0,
    }
    document = FilterDocument(text="A text.", **columns)
    assert document.after(FilterResult()) is document
    same = FilterResult(text="A text.", columns={"language": "", "pii_email": 2})
    assert document.after(same) is document
    changed = document.after(FilterResult(text="A", columns={"language": "deu_Latn"}))
    assert changed == replace(document, text="A", language="deu_Latn")


def test_two_filters_have_no_column_in_common(tmp_path: Path) -> None:
    text = COUNTED.format(before="pii")
    (tmp_path / "mine.py").write_text(
        text + text.replace("class Mine", "class Other").replace('"mine"', '"other"', 1)
    )
    with pytest.raises(ConfigError, match=r"has the column 'digits', which is one of .*:Mine"):
        load_filters((f"{tmp_path}/mine.py:Mine", f"{tmp_path}/mine.py:Other"))


def test_an_adapter_applies_the_filters_too(tmp_path: Path) -> None:
    class Document:
        def __init__(self, text: str) -> None:
            self.text, self.metadata = text, {"url": "https://a.org/1"}

    config = replace(PLAIN, filters=(write_filter(tmp_path, "return 'short'"),)).filter_config
    check_files(config)
    document = Document("A text.")
    assert filter_document(document, config) == "mine"
    assert document.metadata["stamm_detail"] == "short"
