"""Made-up texts are ranked among their like, varied copies beside exact ones; short texts counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stamm.audit import job
from stamm.audit.canaries import Exposure, exposure
from stamm.audit.config import AuditConfig
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, write_json
from stamm.corpus.canaries.job import inject
from stamm.corpus.canaries.random_text import MADE_UP, Draws, made_up, rivals
from stamm.corpus.config import KINDS, CanariesConfig, InjectionConfig, Kind, ProbesConfig
from stamm.runs.job import Workspace
from tests.unit.taught_decoder import audited_folders

CONFIG = AuditConfig(prefix_tokens=6, new_tokens=12, candidates=63)
WORDS = tuple(f"{a}{b}" for a in ("ri", "sto", "wa", "lu") for b in ("ver", "ne", "ter", "na"))
SEEN, NEVER = 8, 0
LOOSE = 1.0 / math.log(2)  # bits that a text never seen has in the mean


def text(kind: Kind, name: str) -> str:
    if kind in MADE_UP:
        return made_up(kind, Draws("test", name), 24, WORDS)
    return " ".join(made_up("random_words", Draws("book", name), 24, WORDS).split()) + "."


def planted() -> dict[str, Any]:
    """Two texts of every kind and bucket, as probes.json lists them, and three of passages."""

    def rows(kind: Kind | None, number: int) -> list[dict[str, Any]]:
        return [
            {
                "probe_id": f"{kind or 'book'}-r{repeat}-{n}",
                "repeat": repeat,
                "text": text(kind or "rewrapped", f"{kind} {repeat} {n}"),
                **({"kind": kind} if kind else {}),
            }
            for repeat in (NEVER, SEEN)
            for n in range(number)
        ]

    return {
        "schema": 1,
        "seed": 3,
        "probes": rows(None, 3),
        "canaries": [row for kind in KINDS for row in rows(kind, 2)],
        "made_up": {"words": 24, "vocabulary": list(WORDS)},
    }


def stored(root: Path, *, taught: bool) -> dict[str, Path]:
    """A corpus' list of what was planted, a tokenizer, and a decoder taught it by heart or nothing."""
    plain = planted()
    listed = [*plain["probes"], *plain["canaries"]]
    return audited_folders(
        root,
        plain,
        texts=[row["text"] for row in listed],
        by_heart=[row["text"] for row in listed if row["repeat"] and taught],
        d_model=64,
        steps=150,
    )


@pytest.fixture(scope="module")
def knows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return stored(tmp_path_factory.mktemp("knows"), taught=True)


def audited(
    inputs: dict[str, Path], folder: Path, config: AuditConfig = CONFIG
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder.mkdir(exist_ok=True)
    job.run(config, Workspace(folder=folder, inputs=inputs))
    lines = (folder / "canaries.jsonl").read_text().splitlines()
    return read_json(folder / "memorization.json"), [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("cost", "others", "rank", "bits"),
    [
        (1.0, [2.0, 3.0, 4.0], 1, 2.0),
        (2.5, [2.0, 3.0, 4.0], 2, 1.0),
        (9.0, [2.0, 3.0, 4.0], 4, 0.0),
        (2.0, [2.0, 2.0, 2.0], 4, 0.0),
        (math.nan, [2.0], 2, 0.0),
        (1.0, [math.nan, 2.0], 2, math.log2(3) - 1),
        (1.0, [math.inf], 1, 1.0),
    ],
)
def test_exposure_is_the_definition(
    cost: float, others: list[float], rank: int, bits: float
) -> None:
    found = exposure(cost, others)
    assert found == Exposure(rank=rank, candidates=len(others))
    assert found.bits == pytest.approx(bits)


def test_a_text_like_any_other_has_the_exposure_that_is_told() -> None:
    ranks = [Exposure(rank=rank, candidates=255).bits for rank in range(1, 257)]
    assert sum(ranks) / 256 == pytest.approx(LOOSE, abs=0.03)


def test_rivals_are_drawn_as_canaries_are_and_are_none_of_them() -> None:
    for kind in MADE_UP:
        others = rivals(kind, 40, 3, 24, WORDS)
        assert len(set(others)) == 40
        assert others[:7] == rivals(kind, 7, 3, 24, WORDS)
        assert set(others).isdisjoint(rivals(kind, 40, 4, 24, WORDS))
        assert set(others).isdisjoint(made_up(kind, Draws("canary", 3, n), 24, WORDS) for n in "ab")
        assert {len(other.split()) for other in others} == {len(text(kind, "x").split())}


def test_what_was_learned_by_heart_is_exposed_and_its_like_is_not(
    knows: dict[str, Path], tmp_path: Path
) -> None:
    report, lines = audited(knows, tmp_path / "audit")
    assert [kind["kind"] for kind in report["canaries"]] == list(KINDS)
    for kind in report["canaries"]:
        never, seen = kind["buckets"]
        assert (never["repeats"], never["passages"], never["extracted"]) == (NEVER, 2, 0)
        assert (seen["repeats"], seen["passages"], seen["extracted"]) == (SEEN, 2, 2)
        if kind["kind"] in MADE_UP:
            assert kind["candidates"] == 63
            assert seen["exposure_bits"]["mean"] == 6.0
            assert never["exposure_bits"]["mean"] < 5.0
        else:
            assert (kind["candidates"], seen["exposure_bits"]) == (0, None)
    assert {line["kind"] for line in lines} == set(KINDS)
    for line in lines:
        if line["kind"] in MADE_UP:
            assert line["exposure_bits"] == math.log2(64) - math.log2(line["rank"])
        assert (line["produced"] == line["truth"]) == (line["repeats"] == SEEN)


def test_varied_copies_are_held_against_exact_ones_of_the_same_repeats(
    knows: dict[str, Path], tmp_path: Path
) -> None:
    report, _ = audited(knows, tmp_path / "audit")
    kinds = {kind["kind"]: kind for kind in report["canaries"]}
    passages = {bucket["repeats"]: bucket for bucket in report["buckets"]}
    words = {bucket["repeats"]: bucket for bucket in kinds["random_words"]["buckets"]}
    beside = {"rewrapped": passages, "prefixed": passages, "prefixed_words": words}
    for name, other in beside.items():
        never, seen = kinds[name]["buckets"]
        assert never["minus_exact"] is None
        gap = seen["minus_exact"]["nll_nats"]["mean"]
        assert gap == pytest.approx(seen["nll_nats"]["mean"] - other[SEEN]["nll_nats"]["mean"])
    for name in ("random_words", "random_characters", "secret"):
        assert kinds[name]["beside"] is None
        assert kinds[name]["buckets"][1]["minus_exact"] is None


def test_a_model_that_learned_nothing_exposes_nothing(tmp_path: Path) -> None:
    inputs = stored(tmp_path, taught=False)
    report, lines = audited(inputs, tmp_path / "audit")
    bits = [line["exposure_bits"] for line in lines if line["kind"] in MADE_UP]
    # 16 texts with every rank alike: the mean lies within four of its standard errors of 1.44.
    assert abs(sum(bits) / len(bits) - LOOSE) < 4 * LOOSE / math.sqrt(len(bits))
    assert sum(bucket["extracted"] for bucket in report["buckets"]) == 0
    assert all(b["extracted"] == 0 for kind in report["canaries"] for b in kind["buckets"])


def test_the_same_bytes_again(knows: dict[str, Path], tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        audited(knows, folder)
    assert sorted(path.name for path in folders[0].iterdir()) == sorted(job.OUTPUTS)
    for name in job.OUTPUTS:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_texts_too_short_are_left_out_and_counted(knows: dict[str, Path], tmp_path: Path) -> None:
    plain = planted()
    plain["probes"][0]["text"] = "Short."
    for row in plain["canaries"]:
        if row["kind"] == "secret" or row["probe_id"] == "prefixed-r8-1":
            row["text"] = "Short."
    plain["withdrawn"] = ["r8-9", "secret-r8-7"]
    (tmp_path / "corpus").mkdir()
    write_json(tmp_path / "corpus" / "probes.json", plain)
    report, lines = audited({**knows, "corpus": tmp_path / "corpus"}, tmp_path / "audit")
    assert (report["passages"], report["skipped"], report["withdrawn"]) == (5, 1, 2)
    kinds = {kind["kind"]: kind for kind in report["canaries"]}
    assert (kinds["secret"]["skipped"], kinds["secret"]["buckets"]) == (4, [])
    assert kinds["prefixed"]["skipped"] == 1
    assert [bucket["passages"] for bucket in kinds["prefixed"]["buckets"]] == [2, 1]
    assert "secret" not in {line["kind"] for line in lines}


def test_rivals_too_short_for_the_window_leave_no_exposure(
    knows: dict[str, Path], tmp_path: Path
) -> None:
    plain = planted()
    plain["made_up"]["words"] = 1
    (tmp_path / "corpus").mkdir()
    write_json(tmp_path / "corpus" / "probes.json", plain)
    report, _ = audited({**knows, "corpus": tmp_path / "corpus"}, tmp_path / "audit")
    words = next(kind for kind in report["canaries"] if kind["kind"] == "random_words")
    assert words["candidates"] == 0
    assert {bucket["exposure_bits"] for bucket in words["buckets"]} == {None}


def test_a_corpus_of_before_canaries_were_told_is_audited(
    knows: dict[str, Path], tmp_path: Path
) -> None:
    plain = planted()
    for key in ("canaries", "made_up", "seed"):
        del plain[key]
    (tmp_path / "corpus").mkdir()
    write_json(tmp_path / "corpus" / "probes.json", plain)
    report, lines = audited({**knows, "corpus": tmp_path / "corpus"}, tmp_path / "audit")
    assert (report["canaries"], report["withdrawn"], lines) == ([], 0, [])


def test_what_is_planted_can_be_audited(knows: dict[str, Path], tmp_path: Path) -> None:
    config = InjectionConfig(
        probes=ProbesConfig(
            books="package:probe_books.jsonl.zst", passages_per_bucket=1, repeats=(0, 2)
        ),
        canaries=CanariesConfig(per_bucket=1, repeats=(0, 2), words=24),
    )
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    inject(config, Workspace(folder=corpus))
    told = read_json(corpus / "probes.json")
    assert told["made_up"]["words"] == 24
    words = set(told["made_up"]["vocabulary"])
    for row in told["canaries"]:
        if row["kind"] in ("random_words", "prefixed_words"):
            assert words.issuperset(row["text"].split())
    report, lines = audited({**knows, "corpus": corpus}, tmp_path / "audit")
    assert [kind["kind"] for kind in report["canaries"]] == list(KINDS)
    assert {kind["candidates"] for kind in report["canaries"]} == {0, 63}
    assert len(lines) == 2 * len(KINDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canaries": [{"kind": "worm"}]}, "'worm' is not a kind of canary"),
        ({"canaries": [{"kind": ["secret"]}]}, "is not a kind of canary"),
        ({"canaries": [7]}, "TypeError"),
        (
            {"canaries": [{"kind": "secret", "probe_id": 1, "repeat": 1, "text": "x"}]},
            "must be strings",
        ),
        ({"made_up": {"words": 0, "vocabulary": ["x"]}}, "cannot be drawn"),
        ({"made_up": {"words": 9, "vocabulary": []}}, "cannot be drawn"),
        ({"made_up": {"vocabulary": ["x"]}}, "KeyError: 'words'"),
        ({"probes": [], "withdrawn": ["a"]}, r"lists no planted passage \(1 were withdrawn\)"),
    ],
)
def test_lists_that_lie_are_refused(
    knows: dict[str, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "corpus").mkdir()
    write_json(tmp_path / "corpus" / "probes.json", planted() | change)
    with pytest.raises(DataError, match=message):
        audited({**knows, "corpus": tmp_path / "corpus"}, tmp_path / "audit")


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"candidates = 0 must lie in \[1, 1000000\]"):
        AuditConfig(candidates=0)
