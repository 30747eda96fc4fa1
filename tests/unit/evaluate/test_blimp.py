"""Minimal pairs: the shipped slice is what it claims, and a model is scored by the definition."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError
from stamm.base.files import write_json
from stamm.base.schema import read_record
from stamm.evaluate import blimp, job
from stamm.evaluate.blimp import (
    MinimalPair,
    PairScore,
    accuracy_metric,
    blind_summary,
    score_pairs,
    shipped_pairs,
    summarize,
)
from stamm.evaluate.config import EvaluateConfig
from stamm.evaluate.records import BlimpFile
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from stamm.tokenizer.special_tokens import BEGIN_ID
from stamm.tokenizer.tokenizer import Tokenizer


def pair(paradigm: str, field: str = "syntax") -> MinimalPair:
    return MinimalPair(paradigm=paradigm, field=field, phenomenon="p", good="g", bad="b")


def test_slice_has_fifteen_pairs_of_each_paradigm() -> None:
    pairs = shipped_pairs(15)
    assert len(pairs) == 67 * 15
    assert len({one.paradigm for one in pairs}) == 67
    assert len({one.phenomenon for one in pairs}) == 13
    assert {one.field for one in pairs} == {
        "morphology",
        "semantics",
        "syntax",
        "syntax_semantics",
    }
    assert all(one.good != one.bad and one.good and one.bad for one in pairs)
    assert pairs[0].good == "Who should Derek hug after shocking Richard?"
    assert len(shipped_pairs(2)) == 134
    assert shipped_pairs(2)[:2] == pairs[:2]


def test_attribution_names_this_very_file() -> None:
    folder = resources.files("stamm.evaluate").joinpath("data")
    digest = hashlib.sha256(folder.joinpath("blimp_slice.jsonl.zst").read_bytes()).hexdigest()
    note = folder.joinpath("LICENSE.md").read_text(encoding="utf-8")
    assert digest in note
    assert "CC-BY-4.0" in note
    assert "Changes:" in note


def test_the_likelier_sentence_wins(inputs: dict[str, Path]) -> None:
    decoder, tokenizer = load_decoder(inputs["model"]), Tokenizer.load(inputs["tokenizer"])
    pairs = shipped_pairs(1)[:10]
    given = score_pairs(decoder, tokenizer.encode, BEGIN_ID, pairs, 500, NoProgress())
    for answer in given:
        totals = []
        for text in (answer.pair.good, answer.pair.bad):
            tokens = [BEGIN_ID, *tokenizer.encode(text)]
            with torch.no_grad():
                logs = decoder(torch.tensor([tokens]))[0].double().log_softmax(-1)
            totals.append(sum(float(logs[t, token]) for t, token in enumerate(tokens[1:])))
        assert answer.score == float(totals[0] > totals[1])
    assert {answer.score for answer in given} == {0.0, 1.0}


def test_equal_sentences_count_one_half(inputs: dict[str, Path]) -> None:
    decoder, tokenizer = load_decoder(inputs["model"]), Tokenizer.load(inputs["tokenizer"])
    same = MinimalPair(paradigm="p", field="f", phenomenon="q", good="A tree.", bad="A tree.")
    (answer,) = score_pairs(decoder, tokenizer.encode, BEGIN_ID, [same], 500, NoProgress())
    assert answer.score == blimp.CHANCE == 0.5


def test_a_sentence_beyond_the_context_is_named(inputs: dict[str, Path]) -> None:
    decoder, tokenizer = load_decoder(inputs["model"]), Tokenizer.load(inputs["tokenizer"])
    long = MinimalPair(paradigm="p", field="f", phenomenon="q", good="fine", bad="Zq " * 161)
    with pytest.raises(ConfigError, match=r"'Zq Zq .* more than the model's max_context = 160"):
        score_pairs(decoder, tokenizer.encode, BEGIN_ID, [long], 500, NoProgress())


def test_summary_by_field_and_overall() -> None:
    given = [
        PairScore(pair=pair("a"), score=1.0),
        PairScore(pair=pair("a"), score=0.0),
        PairScore(pair=pair("b"), score=1.0),
        PairScore(pair=pair("c", "semantics"), score=1.0),
    ]
    found = summarize(given)
    assert found["accuracy"] == 0.75
    assert found["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    assert list(found["fields"]) == ["semantics", "syntax"]
    assert found["fields"]["syntax"]["accuracy"] == pytest.approx(2 / 3)
    assert found["paradigms"]["a"]["pairs"] == 2
    assert found["chance"] == 0.5


def test_pages_show_the_error_over_paradigms(tmp_path: Path) -> None:
    given = [PairScore(pair=pair(name), score=s) for name in "abcd" for s in (float(name < "d"),)]
    given = [*given, PairScore(pair=pair("e", "semantics"), score=0.0)] * 10
    write_json(tmp_path / "blimp.json", {"schema": 1, "pairs_per_paradigm": 10, **summarize(given)})
    found = read_record(BlimpFile, tmp_path / "blimp.json")
    scores = found.scores()
    # Five paradigms with accuracies 1, 1, 1, 0, 0; four of them are syntax.
    assert scores["overall"].standard_error == pytest.approx(math.sqrt(0.3 / 5))
    assert scores["syntax"].standard_error == pytest.approx(0.5 / math.sqrt(4))
    # One paradigm has no error of its own.
    assert scores["semantics"] == found.fields["semantics"]
    assert scores["overall"].accuracy == found.accuracy


def test_the_interval_is_over_paradigms() -> None:
    given = [PairScore(pair=pair(name), score=s) for name in "abcd" for s in (float(name < "d"),)]
    given *= 10  # ten pairs of each paradigm, all alike
    metric = accuracy_metric(given)
    assert metric.value == 0.75
    # Four paradigms with accuracies 1, 1, 1, 0: their standard deviation is 1/2.
    assert metric.standard_error == pytest.approx(0.5 / math.sqrt(4))
    assert metric.interval_95 is not None
    assert metric.interval_95[1] - metric.value == pytest.approx(3.182446 * 0.25, rel=1e-5)


def test_pairs_that_a_length_rule_solves_carry_a_warning() -> None:
    long = MinimalPair(paradigm="p", field="f", phenomenon="q", good="longer text", bad="short")
    given = [PairScore(pair=replace(long, paradigm=f"p{n}"), score=n % 2) for n in range(40)]
    unigram = np.log(np.full(256, 1 / 256))
    found = blind_summary(given, lambda text: list(text.encode()), unigram).details(0.5)
    values = {name: one["value"] for name, one in found["blind"].items()}
    assert values == {"longest": 1.0, "shortest": 0.0, "unigram": 0.5}
    assert (found["strongest_blind"], found["solved_blind"]) == ("longest", 40)
    assert found["sighted_minus_blind"]["value"] == -0.5
    assert found["warning"] == "solved blind above chance: longest 1.000"


def test_the_task_names_blind_baselines(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = EvaluateConfig(tasks=("blimp",), blimp_pairs_per_paradigm=1, threads=1)
    job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    found = read_record(BlimpFile, tmp_path / "blimp.json")
    assert set(found.blind) == {"longest", "shortest", "unigram"}
    pairs = shipped_pairs(1)
    longest = sum(
        0.5 if len(one.good) == len(one.bad) else float(len(one.good) > len(one.bad))
        for one in pairs
    )
    assert found.blind["longest"].value == pytest.approx(longest / len(pairs))
    assert (found.metric, found.license) == ("accuracy", "CC-BY-4.0")
