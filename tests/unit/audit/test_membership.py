"""AUC by its definition, with an interval that covers; scores by theirs."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from stamm.audit.config import AuditConfig
from stamm.audit.grid import Encoded
from stamm.audit.job import _write_membership
from stamm.audit.membership import SCORES, areas, auc, scores
from stamm.audit.memorization import Passage
from stamm.audit.records import MembershipFile
from stamm.base.console import NoProgress
from stamm.base.schema import read_record
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.loading import OpenModel
from stamm.runs.job import Workspace


def test_area_equals_the_pairs() -> None:
    planted = {"a": [1.0, 2.0, 2.0], "b": [0.0]}
    control = {"a": [2.0, 0.5], "b": [3.0, -1.0], "c": [9.0]}
    pairs = [(x, y) for key in planted for x in planted[key] for y in control[key]]
    expected = sum((x > y) + (x == y) / 2 for x, y in pairs) / len(pairs)
    found = auc(planted, control)
    assert found is not None
    assert found.mean == pytest.approx(expected)
    assert auc({"a": [1.0]}, {"b": [1.0]}) is None


def test_a_perfect_area_of_few_texts_is_not_certain() -> None:
    few, many = (auc({0: [1.0] * n}, {0: [0.0] * n}) for n in (4, 400))
    assert few is not None
    assert many is not None
    assert (few.mean, few.high) == (1.0, 1.0)
    assert few.low is not None
    assert many.low is not None
    assert few.low < 0.75 < 0.98 < many.low


def test_the_interval_covers() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        found = auc({0: random.normal(1, 1, 12)}, {0: random.normal(0, 1, 15)})
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.7602 <= found.high  # Phi(1 / sqrt(2))
    assert covered / 300 > 0.92


def test_scores_of_the_definition() -> None:
    decoder = build_decoder(
        DecoderConfig(
            vocab_size=20, d_model=16, num_layers=1, ffn=PlainFFN(width=24), init_std=0.5
        ),
        seed=1,
    )

    class Words:
        encode = staticmethod(lambda text: [3, 4, 5, 6, 7])

    model = OpenModel(
        decoder=decoder,
        tokenizer=Words(),  # type: ignore[arg-type]  # all that is read
        prefix=(1,),
        begin=1,
        stop_ids=frozenset(),
        chat_format=None,
        sha256="",
    )
    tokens = [3, 9, 4, 4, 12]
    given = Encoded(passage=Passage(probe_id="p", repeats=1, text="some text"), tokens=tokens)
    (row,) = scores(AuditConfig(min_k=0.4), model, [given], model)
    with torch.no_grad():
        log = decoder(torch.tensor([[1, *tokens[:-1]]]))[0].double().log_softmax(-1)
        other = decoder(torch.tensor([[1, 3, 4, 5, 6]]))[0].double().log_softmax(-1)
    taken = log[torch.arange(5), torch.tensor(tokens)]
    mean = (log.exp() * log).sum(-1)
    deviation = ((log.exp() * log**2).sum(-1) - mean**2).sqrt()
    assert row["loss"] == pytest.approx(float(taken.mean()), rel=1e-5)
    assert row["min_k"] == pytest.approx(float(taken.sort().values[:2].mean()), rel=1e-5)
    standard = ((taken - mean) / deviation).sort().values[:2].mean()
    assert row["min_k_pp"] == pytest.approx(float(standard), rel=1e-4)
    size = len(zlib.compress(b"some text"))
    assert row["zlib"] == pytest.approx(float(taken.sum()) / size, rel=1e-5)
    ours = float(taken.sum() - other[torch.arange(5), torch.tensor([3, 4, 5, 6, 7])].sum())
    assert row["reference"] == pytest.approx(ours / 9, rel=1e-4)


def test_twins_are_compared_with_each_other_alone() -> None:
    def row(group: str, repeats: int, score: float) -> dict[str, object]:
        named = dict.fromkeys(("min_k", "min_k_pp", "zlib"), score)
        return {"group": group, "language": "", "repeats": repeats, "loss": score, "reference": None,
                **named}  # fmt: skip

    found = areas([row("a", 4, 1.0), row("a", 0, 0.0), row("b", 8, -3.0), row("b", 0, -2.0)])
    loss = {one["repeats"]: one["auc"]["mean"] for one in found if one["score"] == "loss"}
    assert loss == {4: 1.0, 8: 0.0, None: 0.5}
    assert "reference" not in {one["score"] for one in found}


def test_the_lack_of_controls_in_a_group_is_told(tmp_path: Path) -> None:
    class Heard(NoProgress):
        said: ClassVar[list[str]] = []

        def log(self, text: str) -> None:
            self.said.append(text)

    row = {"repeats": 4, "group": "a", "language": "", **dict.fromkeys(SCORES, 1.0)}
    place = Workspace(folder=tmp_path, progress=Heard())
    model = SimpleNamespace(sha256="ab")
    _write_membership(AuditConfig(), place, model, None, [row, {**row, "repeats": 0, "group": "b"}])  # type: ignore[arg-type]
    assert read_record(MembershipFile, tmp_path / "membership.json").areas == ()
    (said,) = Heard.said
    assert "no group or language has both planted passages and controls (1 and 1 in all)" in said
    _write_membership(AuditConfig(), place, model, None, [row, {**row, "repeats": 0}])  # type: ignore[arg-type]
    assert len(Heard.said) == 1
