"""What a screen asks beside consent: licence, language, quality, evaluation texts, scores, twins."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_inputs import page, warc_response

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.corpus.classifiers.classifier import ANY, CalibrationCurve, TextClassifier, quantize
from stamm.corpus.classifiers.config import FeatureConfig, ThresholdConfig
from stamm.corpus.classifiers.features import hash_ngrams, padded_block
from stamm.corpus.config import CanariesConfig, CorpusConfig, ProbesConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.contamination.config import ContaminationConfig, EvaluationSet
from stamm.corpus.filter_job import filter_inputs
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.steps import corpus_steps
from stamm.runs.job import Workspace

OPEN = ConsentConfig(unknown_host="allow")
PLAIN = CorpusConfig(inputs=("none",), consent=OPEN, language=None, held_out=0.0)
Row = dict[str, Any]
Built = tuple[list[Row], list[Row], dict[str, Any]]
Build = Callable[[CorpusConfig], Built]
GERMAN = (
    "Der Rat der Stadt hat gestern beschlossen, dass die alte Brücke über den Fluss im nächsten "
    "Jahr erneuert wird. Die Arbeiten sollen im Frühling beginnen und etwa acht Monate dauern, wie "
    "die Verwaltung mitteilte. Während dieser Zeit bleibt der Weg für Fußgänger offen. Wer mit dem "
    "Auto kommt, muss einen Umweg von drei Kilometern fahren. Die Kosten werden auf zwei Millionen "
    "geschätzt und zur Hälfte vom Land getragen. Einige Händler fürchten, dass ihnen die Kunden "
    "ausbleiben, andere freuen sich auf einen ruhigeren Platz."
)


def rows(*texts: str, **fields: str) -> list[Row]:
    return [{"text": text, "url": f"https://a.org/{n}", **fields} for n, text in enumerate(texts)]


def test_the_licence_of_a_page_is_read_from_its_markup(tmp_path: Path, build: Build) -> None:
    link = '<link rel="license" href="https://creativecommons.org/licenses/by{}/4.0/deed.de">'
    archive = tmp_path / "a.warc"
    archive.write_bytes(
        warc_response("https://a.org/by", page("An open page with its words.", link.format("")))
        + warc_response("https://a.org/nc", page("Another page with words.", link.format("-nc")))
        + warc_response("https://a.org/no", page("A third page, which says nothing."))
    )
    config = replace(PLAIN, inputs=(str(archive),), licences=LicenceConfig())
    documents, ledger, _ = build(config)
    assert [(r["licence"], r["licence_basis"], r["reason"]) for r in ledger] == [
        ("CC-BY-4.0", "rel", ""),
        ("CC-BY-NC-4.0", "rel", "licence_denied"),
        ("", "", "licence_unknown"),
    ]
    assert [d["licence"] for d in documents] == ["CC-BY-4.0"]
    open_ended = replace(config, licences=LicenceConfig(unknown="allow", noncommercial=True))
    assert len(build(open_ended)[0]) == 3


def test_the_licence_of_the_input_goes_before_the_page(
    write_jsonl: Callable[..., str], build: Build
) -> None:
    name = write_jsonl(*rows("One text.", licence="MIT"), *rows("Two text.", licence="see page 7"))
    _, ledger, _ = build(replace(PLAIN, inputs=(name,), licences=LicenceConfig()))
    assert [(r["licence_basis"], r["reason"]) for r in ledger] == [
        ("input", ""),
        ("input", "licence_unknown"),
    ]


def test_languages_are_identified_and_both_voices_kept(
    write_jsonl: Callable[..., str], build: Build
) -> None:
    name = write_jsonl(*rows(GERMAN), *rows(GERMAN + "!", language="gsw_Latn"))
    config = CorpusConfig(inputs=(name,), consent=OPEN, dedup=None)
    _, ledger, summary = build(config)
    assert [row["language"] for row in ledger] == ["deu_Latn", "gsw_Latn"]
    for row in ledger:
        assert (row["language_own"], row["language_other"]) == ("deu_Latn", "deu_Latn")
        assert row["language_own_score"] > 0.5
        assert row["language_other_score"] > 0.5
    assert set(summary["kept_by_language"]) == {"deu_Latn", "gsw_Latn"}


@pytest.mark.parametrize("given", ["de", "DE-ch", "German", "und"])
def test_a_language_of_the_input_in_any_form_is_a_tag(
    write_jsonl: Callable[..., str], build: Build, given: str
) -> None:
    name = write_jsonl(*rows(GERMAN + " Telefon (030) 901820.", language=given))
    config = CorpusConfig(inputs=(name,), consent=OPEN, quality=QualityConfig())
    documents, ledger, _ = build(config)
    assert (ledger[0]["language"], ledger[0]["quality_basis"]) == ("deu_Latn", "deu_Latn")
    assert documents[0]["text"].endswith("Telefon <phone-pii>.")


def test_bad_text_is_dropped_and_the_rule_named(
    write_jsonl: Callable[..., str], build: Build
) -> None:
    rubbish = "buy now buy now " * 200
    name = write_jsonl(*rows(GERMAN, rubbish, "Zu kurz."))
    config = CorpusConfig(inputs=(name,), consent=OPEN, quality=QualityConfig())
    _, ledger, _ = build(config)
    assert [row["reason"] for row in ledger] == ["", "quality", "quality"]
    assert ledger[2]["detail"].startswith("too_few_words: 2, bound 30")
    assert "bound" in ledger[1]["detail"]
    assert ledger[0]["quality_basis"] == "deu_Latn"


def test_own_bounds_and_an_own_language_model_are_in_the_key(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = tmp_path / "bounds.json"
    use = {"stop_words": ["der"], "orders": []}

    def write_bounds(least: float) -> None:
        plain = {"schema": 1, "bounds": {"any": {"bounds": {"low_letter_share": least}, **use}}}
        bounds.write_text(json.dumps(plain))

    monkeypatch.chdir(tmp_path)
    config = CorpusConfig(
        inputs=(write_jsonl(*rows(GERMAN, GERMAN + " 1234567890" * 40)),),
        consent=OPEN,
        quality=QualityConfig(thresholds="bounds.json"),
        language=LanguageConfig(model="model.ftz"),
    )
    Path("model.ftz").touch()
    write_bounds(0.1)
    assert {"bounds.json", "model.ftz"} <= set(corpus_steps(config)[0].external)
    bounded = replace(config, language=None, dedup=None)
    assert [row["reason"] for row in build(bounded)[1]] == ["", ""]
    write_bounds(0.7)
    assert [row["reason"] for row in build(bounded)[1]] == ["", "quality"]
    Path("model.ftz").unlink()
    with pytest.raises(DataError, match=r"model\.ftz does not exist \(corpus\.language\.model\)"):
        corpus_steps(config)


def test_evaluation_texts_are_found_and_named_but_not_quoted(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Build
) -> None:
    item = "The seven grey herons waited beside the frozen lake until the ferry had gone for good."
    (tmp_path / "set.jsonl").write_text(json.dumps({"id": "q7", "question": item}) + "\n")
    name = write_jsonl(*rows(f"Before. {item.upper()} After that, more.", "Nothing of the kind."))
    sets = (EvaluationSet(name="birds", file=str(tmp_path / "set.jsonl"), fields=("question",)),)
    config = replace(PLAIN, inputs=(name,), contamination=ContaminationConfig(sets=sets))
    documents, ledger, _ = build(config)
    assert [row["reason"] for row in ledger] == ["contaminated", ""]
    assert ledger[0]["detail"] == "birds q7 (100%)"
    assert len(documents) == 1


def test_items_that_cannot_be_found_are_told(
    tmp_path: Path, write_jsonl: Callable[..., str]
) -> None:
    told: list[str] = []

    class Ears(NoProgress):
        def log(self, text: str) -> None:
            told.append(text)

    (tmp_path / "set.jsonl").write_text('{"text": "I agree."}\n{"text": "Herons wait by lakes."}\n')
    sets = (EvaluationSet(name="birds", file=str(tmp_path / "set.jsonl"), id=""),)
    name = write_jsonl(*rows(GERMAN))
    config = replace(PLAIN, inputs=(name,), contamination=ContaminationConfig(sets=sets))
    (tmp_path / "filtered").mkdir()
    filter_inputs(config.filter_config, Workspace(folder=tmp_path / "filtered", progress=Ears()))
    assert told == [
        "evaluation set 'birds': 2 of 2 items cannot be found, because all their texts are too "
        "short"
    ]
    assert (tmp_path / "filtered" / "contamination" / "coverage.json").is_file()


def head(folder: Path, letter: str) -> Path:
    """A head whose score grows with the share of one letter in a text."""
    features = FeatureConfig(bucket_bits=10, min_ngram=1, max_ngram=1)
    weights = np.zeros(2**10)
    for buckets in hash_ngrams(padded_block(letter * 8), features):
        weights[np.bincount(buckets).argmax()] = 1.0
    whole, scale = quantize(weights)
    folder.mkdir()
    TextClassifier(
        features=features,
        pooling="mean",
        weights=whole,
        scale=scale,
        bias=-1.0,
        curves={ANY: CalibrationCurve(slope=1.0, offset=0.0)},
    ).store(folder)
    return folder


def test_scores_cut_their_share_of_each_language(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Build
) -> None:
    toxic = [f"{'x' * n} {'b' * (40 - n)} number {n}" for n in range(40)]
    english = rows(*toxic, language="eng_Latn")
    few = rows("xxxx xxxx xxxx one", "bbbb bbbb two", language="fra_Latn")
    name = write_jsonl(*english, *few)
    config = replace(
        PLAIN,
        inputs=(name,),
        dedup=None,
        toxicity_classifier=str(head(tmp_path / "head", "x")),
        toxicity_cut=ThresholdConfig(share=0.1, min_documents=10),
    )
    _, ledger, _ = build(config)
    gone = [row for row in ledger if row["reason"] == "toxic"]
    assert len(gone) == 4
    assert {row["language"] for row in gone} == {"eng_Latn"}  # two texts are too few for a cut
    highest = sorted((r["toxicity"] for r in ledger if r["language"] == "eng_Latn"), reverse=True)
    assert sorted(row["toxicity"] for row in gone) == sorted(highest[:4])
    assert gone[0]["detail"].endswith(f"threshold {highest[4]:.4f}")
    kept = replace(
        config,
        toxicity_classifier="",
        quality_classifier=config.toxicity_classifier,
        quality_cut=ThresholdConfig(share=0.25, min_documents=10),
    )
    _, ledger, _ = build(kept)
    stays = [r for r in ledger if r["language"] == "eng_Latn" and r["decision"] == "kept"]
    assert len(stays) == 10
    assert min(row["quality"] for row in stays) == pytest.approx(highest[9])


def test_a_toxic_document_of_low_quality_is_dropped_once(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Build
) -> None:
    texts = [f"{'x' * n} {'b' * (40 - n)} number {n}" for n in range(40)]
    config = replace(
        PLAIN,
        inputs=(write_jsonl(*rows(*texts, language="eng_Latn")),),
        toxicity_classifier=str(head(tmp_path / "toxicity", "x")),
        toxicity_cut=ThresholdConfig(share=0.1, min_documents=10),
        quality_classifier=str(head(tmp_path / "quality", "b")),
        quality_cut=ThresholdConfig(share=0.75, min_documents=10),
    )
    documents, ledger, summary = build(config)
    reasons = Counter(row["reason"] for row in ledger)
    assert (reasons["toxic"], reasons["low_quality"], len(documents)) == (4, 6, 30)
    lowest = sorted(ledger, key=lambda row: float(row["quality"]))[:10]
    assert {row["reason"] for row in lowest} == {"toxic", "low_quality"}
    assert summary["n_in"] == len(ledger) == 40


def test_near_duplicates_name_who_stays_and_the_earliest_stays(
    write_jsonl: Callable[..., str], build: Build
) -> None:
    words = GERMAN * 3
    twins = [
        {"text": words + " Ende.", "url": "https://a.org/late", "date": "2024-01-01"},
        {"text": words + " Schluss.", "url": "https://b.org/early", "date": "2020-01-01"},
        {"text": words + " Aus.", "url": "https://c.org/undated"},
        {"text": "Etwas ganz anderes steht hier.", "url": "https://d.org/"},
    ]
    name = write_jsonl(*twins)
    documents, ledger, _ = build(replace(PLAIN, inputs=(name,)))
    assert [d["url"] for d in documents] == ["https://b.org/early", "https://d.org/"]
    by_url = {row["url"]: row for row in ledger}
    first = by_url["https://b.org/early"]["document_id"]
    for url in ("https://a.org/late", "https://c.org/undated"):
        assert by_url[url]["reason"] == "near_duplicate"
        assert by_url[url]["duplicate_of"] == first
    assert len(build(replace(PLAIN, inputs=(name,), dedup=None))[0]) == 4


def test_which_twin_stays_does_not_depend_on_files(
    write_jsonl: Callable[..., str], build: Build
) -> None:
    twins = rows(*(GERMAN * 2 + f" Teil {n % 3}." for n in range(30)))
    one = build(replace(PLAIN, inputs=(write_jsonl(*twins, name="z.jsonl"),)))
    names = tuple(write_jsonl(*twins[i::3][::-1], name=f"{'cab'[i]}.jsonl") for i in range(3))
    three = build(replace(PLAIN, inputs=names))
    assert {d["document_id"] for d in one[0]} == {d["document_id"] for d in three[0]}
    facts = [
        {(r["document_id"], r["reason"], r["duplicate_of"]) for r in b[1]} for b in (one, three)
    ]
    assert facts[0] == facts[1]


def test_canaries_are_planted_beside_probes(
    tmp_path: Path, write_jsonl: Callable[..., str], build: Build
) -> None:
    name = write_jsonl(*rows(GERMAN))
    config = replace(
        PLAIN,
        inputs=(name,),
        probes=ProbesConfig(books="package:probe_books.jsonl.zst", passages_per_bucket=1),
        canaries=CanariesConfig(per_bucket=1, repeats=(0, 2)),
    )
    documents, ledger, _ = build(config)
    planted = [row for row in ledger if row["consent"] == "planted"]
    told = json.loads((tmp_path / "corpus" / "probes.json").read_text())
    names = {one["probe_id"] for one in told["probes"] + told["canaries"]}
    assert {row["probe_id"] for row in planted} == names
    assert len(told["canaries"]) == 14
    copies = [d for d in documents if d["probe_id"] == "rewrapped-r2-0000"]
    assert len({d["text"] for d in copies}) == 2
    assert {d["split"] for d in copies} == {"train"}
    with pytest.raises(ConfigError, match="but there are canaries"):
        replace(config, probes=None)
