"""A point of the grid is what its prefix alone gives; the rules of the published audit are options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from stamm.audit import job
from stamm.audit.config import AuditConfig, GridConfig
from stamm.audit.grid import Encoded, cells, extraction_rates, outcomes, points
from stamm.audit.memorization import Passage
from stamm.audit.records import GridFile, MembershipFile
from stamm.base.console import NoProgress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.schema import read_record
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.generate import greedy, nats_of_sequences
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.models.serialization import load_decoder
from stamm.runs.job import Workspace
from tests.unit.taught_decoder import audited_folders

GRID = GridConfig(prefixes=(3, 6, 11), offsets=(0, 1, 4), match_tokens=2, top_k=5)
CONFIG = AuditConfig(prefix_tokens=6, new_tokens=5, grid=GRID, batch_tokens=40)
BEGIN = (1,)


def encoded(name: str, repeats: int, tokens: list[int], language: str = "") -> Encoded:
    passage = Passage(probe_id=name, repeats=repeats, text=name, language=language)
    return Encoded(passage=passage, tokens=tokens)


GIVEN = [
    encoded("a", 0, [(7 * i) % 29 + 2 for i in range(24)]),
    encoded("b", 3, [(11 * i) % 29 + 2 for i in range(19)]),
    encoded("c", 8, [(5 * i + 1) % 29 + 2 for i in range(12)]),
]


def test_every_point_equals_its_prefix_alone() -> None:
    config = DecoderConfig(
        vocab_size=31,
        d_model=16,
        num_layers=2,
        ffn=PlainFFN(width=24),
        max_context=20,
        init_std=0.3,
    )
    decoder = build_decoder(config, seed=2)
    wanted, left_out = points(GRID, 5, 19, GIVEN)
    assert len(wanted) + left_out == 27
    found = outcomes(CONFIG, GRID, decoder, BEGIN, wanted, NoProgress())
    assert sorted(o.point.number for o in found) == [p.number for p in wanted]
    again = outcomes(
        AuditConfig(prefix_tokens=6, new_tokens=5, grid=GRID, batch_tokens=1),
        GRID, decoder, BEGIN, wanted, NoProgress(),
    )  # fmt: skip
    by_number = {one.point.number: one for one in again}
    for one in found:
        place = slice(one.point.offset, one.point.offset + one.point.prefix)
        prompt = [*BEGIN, *one.point.encoded.tokens[place]]
        assert one.greedy == greedy(decoder, [prompt], 5)[0]
        costs = nats_of_sequences(decoder, [[*prompt, *one.point.truth]], 999)[0]
        assert one.nll_nats == pytest.approx(float(costs[-5:].mean()), rel=1e-5)
        assert one.sampled == by_number[one.point.number].sampled


def test_rules_of_the_published_audit() -> None:
    every = {
        (p.encoded.passage.probe_id, p.offset, p.prefix) for p in points(GRID, 5, 99, GIVEN)[0]
    }
    assert ("b", 4, 6) in every
    for rule, gone in (
        ({"as_published": ("offset_bucket",)}, lambda p: p[0] == "b" and p[1] > 0),
        ({"excluded": ("c",)}, lambda p: p[0] == "c"),
    ):
        config = GridConfig(prefixes=GRID.prefixes, offsets=GRID.offsets, **rule)  # type: ignore[arg-type]
        kept = points(config, 5, 99, GIVEN)[0]
        assert {(p.encoded.passage.probe_id, p.offset, p.prefix) for p in kept} == {
            p for p in every if not gone(p)
        }
    loop = encoded("loop", 1, [4, 5] * 12)
    config = GridConfig(prefixes=(3,), offsets=(0,), as_published=("low_type_token_ratio",))
    assert [p.encoded for p in points(config, 6, 99, [loop, GIVEN[0]])[0]] == [GIVEN[0]]


def test_cells_of_languages_and_of_all() -> None:
    side = {"rouge_l": 0.5, "longest_common_span_share": 0.1, "exact_match": 0.0,
            "type_token_ratio": 0.9}  # fmt: skip
    rows = [
        {
            "language": language, "repeats": repeats, "prefix_tokens": 3, "offset_tokens": 0,
            "nll_nats": nll, "log_p": -0.1, "true_type_token_ratio": 1.0,
            "greedy": side, "sampled": side,
        }
        for language, repeats, nll in (("de", 0, 4.0), ("fr", 0, 2.0), ("de", 8, 1.0), ("fr", 8, 1.0))
    ]  # fmt: skip
    found = {(cell["language"], cell["repeats"]): cell for cell in cells(rows)}
    assert set(found) == {(one, n) for one in ("", "de", "fr") for n in (0, 8)}
    assert found["", 8]["nll_minus_control"]["mean"] == -2.0
    assert found["de", 8]["nll_minus_control"]["mean"] == -3.0
    assert found["", 0]["greedy"]["exact_match"]["high"] > 0.5
    rates = extraction_rates(rows)
    assert {rate["share"]["mean"] for rate in rates if rate["samples"] == 10} == {1.0}
    assert len(cells([row for row in rows if row["language"] == "de"])) == 2


@pytest.mark.parametrize(
    "field", [{"prefixes": ()}, {"offsets": (3, 1)}, {"temperature": 0.0}, {"seed": -1}]
)
def test_settings_without_meaning(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GridConfig(**field)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("grid")
    texts = ["Call me Ishmael. Some years ago, never mind how long.", "Happy families are alike."]
    return audited_folders(
        root, {"schema": 1, "probes": []}, texts=texts, by_heart=(), d_model=16, steps=0
    )


LINES = (
    {"text": "Call me Ishmael. Some years ago, never <b>mind</b>", "repeats": 4, "language": "en"},
    {"text": "Happy families are alike. Some years ago, never", "repeats": 0, "language": "en"},
)


def own_passages(folder: Path, lines: Any) -> Path:
    path = folder / "mine.jsonl"
    # without an end of line: the last passage is read, too
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_own_passages_and_a_hugging_face_folder(folders: dict[str, Path], tmp_path: Path) -> None:

    decoder = load_decoder(folders["model"])
    hub = tmp_path / "folder"
    hub.mkdir()
    special = HubSpecialIds(begin=1, end=2, pad=3)
    (hub / "config.json").write_text(json.dumps(hub_config(decoder.config, special)))
    save_file(hub_state(decoder), str(hub / "model.safetensors"))
    (hub / "tokenizer.json").write_bytes((folders["tokenizer"] / "tokenizer.json").read_bytes())
    mine = own_passages(tmp_path, LINES)
    config = AuditConfig(
        prefix_tokens=3, new_tokens=4, redact=True, threads=1, passages=str(mine),
        grid=GridConfig(prefixes=(3, 5), offsets=(0, 2), match_tokens=2),
    )  # fmt: skip
    results = []
    for name, inputs in (
        ("hub", {"model": hub, "tokenizer": hub}),
        ("run", {"model": folders["model"], "tokenizer": folders["tokenizer"],
                 "reference": hub, "reference_tokenizer": hub}),
    ):  # fmt: skip
        out = tmp_path / name
        out.mkdir()
        job.run(config, Workspace(folder=out, inputs=inputs))
        results.append(read_record(GridFile, out / "grid.json"))
        for file in out.iterdir():
            assert "Ishmael" not in file.read_text()
            assert "<b>" not in file.read_text()
        shown = json.loads((out / "continuations.jsonl").read_text().splitlines()[0])
        assert "characters, SHA-256" in shown["truth"]
    assert results[0].points == results[1].points == 8
    scored = read_record(MembershipFile, tmp_path / "run" / "membership.json")
    assert (scored.passages, scored.controls) == (1, 1)
    assert {one.score for one in scored.areas} == {"loss", "min_k", "min_k_pp", "zlib", "reference"}
    # The reference is the same model, but for a <s> that the folder's tokenizer.json may not add.
    assert read_json(tmp_path / "hub" / "membership.json")["reference_sha256"] is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        ([{"text": "x"}], "line 1 has no 'repeats'"),
        ([{"text": 3, "repeats": 0}], "text = 3 is not text"),
        ([{"text": "x", "repeats": -1}], "repeats = -1 is not 0 or more"),
        ([{"text": "\ud800", "repeats": 1}], "lone surrogate"),
        ([{"text": "x", "repeats": 1, "probe_id": "a"}] * 2, "'a' is there twice"),
        ([{"text": "x" * (4 * 2**20), "repeats": 1}], "line 1 is over"),
    ],
)
def test_hostile_passages_are_one_line(
    folders: dict[str, Path], tmp_path: Path, lines: Any, message: str
) -> None:
    config = replace(CONFIG, passages=str(own_passages(tmp_path, lines)))
    with pytest.raises(DataError, match=message):
        job.run(config, Workspace(folder=tmp_path, inputs=folders))
