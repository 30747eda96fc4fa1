"""`stamm steer`: direction, measures against their formulas, the recommendation, the files and what is refused."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stamm
from stamm.base.files import read_json, sha256_file
from stamm.base.schema import read_record
from stamm.cli.main import main
from stamm.models.decoder import normal_values
from stamm.models.loading import OpenModel, open_model
from stamm.models.steering import parameters_sha256, read_vector
from stamm.steer.job import recommended
from stamm.steer.records import SteerFile, SteerMeasures, SteerRow
from stamm.steer.section import kl_ticks
from tests.unit.tutorials import working_folder
from tests.unit.untrained_run import untrained_run

GERMAN = ["Der Fluss ist breit und der Weg ist weit.", "Über Nacht fiel Schnee.", "Der Weg ist breit.", "Der Schnee ist weit und breit."]  # fmt: skip
ENGLISH = ["The river is wide and the road is long.", "A short note.", "Trees grow.", "The road is wide <script>."]  # fmt: skip
COMMAND = ["steer", "run", "positive=german.jsonl", "negative=english.jsonl", "threads=1"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return untrained_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def folder(inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    working_folder(inputs["model"], tmp_path, monkeypatch)
    for name, texts in (("german", GERMAN), ("english", ENGLISH)):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in texts)
        )
    return tmp_path


def results(folder: Path) -> tuple[Path, SteerFile]:
    (place,) = (folder / "run" / "steer").iterdir()
    return place, read_record(SteerFile, place / "steer.json")


def ids_of(model: OpenModel, texts: Sequence[str]) -> list[list[int]]:
    return [[*model.prefix, *model.tokenizer.encode(text)] for text in texts]


def residuals(model: OpenModel, sequences: Sequence[Sequence[int]], layer: int) -> Tensor:
    """Rows of the residual stream behind a layer, float64, without <s> and without the last token of a text."""
    rows: list[Tensor] = []
    handle = model.decoder.model.layers[layer].register_forward_hook(
        lambda _m, _i, out: rows.append(out[0, 1:].double())
    )
    for ids in sequences:
        model.decoder(torch.tensor([ids[:-1]]))
    handle.remove()
    return torch.cat(rows)


@torch.no_grad()
def measured(model: OpenModel, added: Tensor, layer: int) -> tuple[float, float, float, float]:
    """Effect, KL and both losses of a vector, one text at a time, from logits in float64 numpy."""
    fit = [np.bincount(np.concatenate([ids[1:] for ids in ids_of(model, texts[::2])]), minlength=352) for texts in (GERMAN, ENGLISH)]  # fmt: skip
    positive = fit[0] / fit[0].sum() > 2 * fit[1] / fit[1].sum()
    sums: list[list[float]] = [[], [], [], []]
    for kind, texts in enumerate((GERMAN, ENGLISH)):
        for ids in ids_of(model, texts[1::2]):
            plain = model.decoder(torch.tensor([ids[:-1]]))[0].double().numpy()
            handle = model.decoder.model.layers[layer].register_forward_hook(
                lambda _m, _i, out: out + added
            )
            moved = model.decoder(torch.tensor([ids[:-1]]))[0].double().numpy()
            handle.remove()
            p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (moved, plain))
            sums[2 + kind] += [-float(np.log(row[t])) for row, t in zip(p, ids[1:], strict=True)]
            if kind:
                odds = [x[:, positive].sum(-1) / x[:, ~positive].sum(-1) for x in (p, q)]
                sums[0] += np.log(odds[0] / odds[1]).tolist()
                sums[1] += (p * np.log(p / q)).sum(-1).tolist()
    return tuple(float(np.mean(one)) for one in sums)  # type: ignore[return-value]


def test_directions_and_measures_are_those_of_their_formulas(folder: Path) -> None:
    """Would catch a half that is fitted to and measured, a wrong layer, a measure of other positions or tokens."""
    assert main([*COMMAND, "strengths=0.5,3", "kl=100", "batch_tokens=16"]) == 0
    _, found = results(folder)
    assert [(row.layer, row.strength) for row in found.rows] == [
        (0, 0.5),
        (0, 3.0),
        (1, 0.5),
        (1, 3.0),
    ]
    model = open_model("run/model")
    for row in found.rows:
        with torch.no_grad():
            positive, negative = (
                residuals(model, ids_of(model, texts[::2]), row.layer)
                for texts in (GERMAN, ENGLISH)
            )
        direction = (positive.mean(0) - negative.mean(0)).float()
        length, stream = found.lengths[str(row.layer)]
        assert length == pytest.approx(float(direction.norm()), rel=1e-5)
        assert stream == pytest.approx(
            float(torch.cat((positive, negative)).norm(dim=1).mean()), rel=1e-5
        )
        expected = measured(model, row.strength * direction, row.layer)
        one = row.vector
        assert (one.effect, one.kl, one.positive_loss, one.negative_loss) == pytest.approx(expected, rel=2e-3, abs=2e-5)  # fmt: skip
        for number, other in enumerate(row.random):
            drawn = random_direction(row.layer, number)
            drawn = row.strength * drawn * direction.norm() / drawn.norm()
            expected = measured(model, drawn, row.layer)
            assert (other.effect, other.kl) == pytest.approx(expected[:2], rel=2e-3, abs=2e-5)
    expected = measured(model, torch.zeros(32), 0)
    assert (found.positive.loss, found.negative.loss) == pytest.approx(expected[2:], rel=1e-5)


def random_direction(layer: int, number: int) -> Tensor:
    return normal_values(0, f"layer.{layer}.{number}", (32,))


def test_the_files_hold_what_is_recommended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("steer run -> run/steer/german-")
    assert not (folder / "run" / "steer").exists()
    assert main([*COMMAND, "layers=1", "strengths=1,4", "kl=50"]) == 0
    printed = capsys.readouterr().out
    place, found = results(folder)
    assert found.recommended is not None and found.verdict in printed
    row = found.rows[found.recommended]
    vector = read_vector(place / "vector.safetensors")
    model = open_model("run/model")
    assert vector.header.model_sha256 == parameters_sha256(model.decoder) == found.model_sha256
    assert (vector.header.method, vector.header.strength) == ("means", row.strength)
    assert vector.layers[1].norm() == pytest.approx(row.strength * found.lengths["1"][0], rel=1e-6)
    assert {n: sha256_file(place / n) for n in ("vector.safetensors", "vector.gguf")} == found.files
    page = (place / "steer.html").read_text()
    assert found.verdict in page and f"{row.vector.effect:+.3f}" in page.replace("\u2212", "-")
    receipt = read_json(folder / "run" / "receipts" / "steer.run.json")
    assert any(name.endswith("steer.json") for name in receipt["outputs"])
    # A run without a recommendation removes the files of the one before.
    assert stamm.steer("run", positive="german.jsonl", negative="english.jsonl", threads=1, kl=1e-9, layers=(1,)).record.files == {}  # fmt: skip
    assert sorted(path.name for path in place.iterdir()) == ["steer.html", "steer.json"]


def test_a_probe_separates_the_texts(folder: Path) -> None:
    """The direction of a logistic regression by scipy, on the same rows."""
    assert main([*COMMAND, "method=probe", "layers=1", "strengths=1"]) == 0
    _, found = results(folder)
    model = open_model("run/model")
    with torch.no_grad():
        kinds = [
            residuals(model, ids_of(model, texts[::2]), 1).numpy() for texts in (GERMAN, ENGLISH)
        ]
    x = np.concatenate(kinds)
    x = x - x.mean(0)
    x = x / np.sqrt((x**2).mean())
    sign = np.repeat([1.0, -1.0], [len(kind) for kind in kinds])
    share = np.repeat([0.5 / len(kind) for kind in kinds], [len(kind) for kind in kinds])

    def loss(w: Any) -> float:
        margin = sign * (x @ w[:-1] + w[-1])
        return float((share * np.logaddexp(0, -margin)).sum() + 0.005 * (w[:-1] ** 2).sum())

    minimize: Any = importlib.import_module("scipy.optimize").minimize
    expected = minimize(
        loss, np.zeros(33), method="L-BFGS-B", options={"maxiter": 2000, "maxfun": 10**6}
    ).x[:-1]
    direction = torch.from_numpy(
        expected / np.linalg.norm(expected) * found.lengths["1"][0]
    ).float()
    one = found.rows[0].vector
    found_there = measured(model, direction, 1)
    assert (one.effect, one.kl) == pytest.approx(found_there[:2], rel=1e-2, abs=1e-4)
    means = torch.from_numpy(kinds[0].mean(0) - kinds[1].mean(0)).float()
    others = measured(model, means, 1)
    assert (one.effect, one.kl) != pytest.approx(others[:2], rel=1e-2, abs=1e-4)


def row_of(layer: int, effect: float, kl: float, *random: tuple[float, float]) -> SteerRow:
    def one(effect: float, kl: float) -> SteerMeasures:
        return SteerMeasures(effect=effect, kl=kl, positive_loss=5.0, negative_loss=5.0)

    return SteerRow(
        layer=layer, strength=1.0, vector=one(effect, kl), random=tuple(one(*r) for r in random)
    )


@pytest.mark.parametrize(
    ("rows", "best", "verdict"),
    [
        ([row_of(0, 0.5, 0.2, (0.1, 0.1)), row_of(1, 0.9, 0.4, (0.1, 0.1))], 0, "effect +0.5 at KL 0.2 (layer 0"),
        ([row_of(0, 0.5, 0.2, (-0.6, 0.1))], None, "no better than random"),
        ([row_of(0, 0.5, 0.2, (-0.6, 0.9))], None, "no better than random"),
        ([row_of(0, 0.5, 0.2, (0.1, 0.1)), row_of(1, 0.3, 0.2, (0.6, 0.3))], None, "no better than random"),
        ([row_of(0, 0.5, 0.2, (0.1, 0.1)), row_of(1, 0.3, 0.2, (0.6, 0.4))], 0, "random directions there 0.1 at most, at every"),
        ([row_of(0, -0.5, 0.2, (0.1, 0.1))], None, "no better than random"),
        ([row_of(0, 0.5, 0.4, (0.1, 0.1))], None, "no strength has KL at most 0.3: the least is 0.4"),
    ],
)  # fmt: skip
def test_the_recommendation(rows: list[SteerRow], best: int | None, verdict: str) -> None:
    found, sentence = recommended(rows, 0.3)
    assert found == best and verdict in sentence


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([], "no positive texts are given. Set positive=FILE"),
        (["positive=german.jsonl"], "no negative texts are given. Set negative=FILE"),
        (["positive=german.jsonl", "negative=none.jsonl"], "none.jsonl is not a file (negative)"),
        (["positive=german.jsonl", "negative=german.jsonl"], "german.jsonl and german.jsonl have the same texts"),
        (["positive=one.jsonl", "negative=english.jsonl"], "one.jsonl has one text"),
        (["positive=german.jsonl", "negative=again.jsonl"], "no token is more than twice as frequent"),
        (["positive=german.jsonl", "negative=english.jsonl", "layers=2"], "layer 2 does not exist: the model has 2 layers. Choose from 0 to 1"),
        (["positive=german.jsonl", "negative=english.jsonl", "strengths=inf"], "SteerConfig.strengths.0 = inf must be positive and finite"),
        (["positive=german.jsonl", "negative=english.jsonl", "method=sae"], "method = 'sae'"),
        (["positive=german.jsonl", "negative=bad.jsonl"], "line 1 of bad.jsonl is not a JSON object"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    folder: Path, changes: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "one.jsonl").write_text(json.dumps({"text": GERMAN[0]}))
    (folder / "again.jsonl").write_text("".join(json.dumps({"text": t}) + " \n" for t in GERMAN))
    (folder / "bad.jsonl").write_text("[1]\n")
    assert main(["steer", "run", "threads=1", *changes]) in (1, 2)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("stamm: "))
    assert why in line
    assert not list((folder / "run").rglob("steer.json"))


def test_the_page_has_plain_numbers_on_its_axes_and_escapes_names(folder: Path) -> None:
    """Would catch powers that are written as formulas of TeX, and the name of a file that is markup."""
    (folder / "<b>.jsonl").write_text((folder / "german.jsonl").read_text())
    command = [word.replace("german", "<b>") for word in COMMAND]
    assert main([*command, "layers=0", "strengths=0.1,1"]) == 0
    place, _ = results(folder)
    page = (place / "steer.html").read_text()
    assert "mathdefault" not in page and ">0.1</text>" in page
    assert "&lt;b&gt;.jsonl" in page and "<b>.jsonl" not in page


def test_ticks_of_a_wide_axis_do_not_overlap() -> None:
    """Would catch all 15 values of 7 powers of 10 below an axis that has room for half of them."""
    assert kl_ticks(0.02, 2.0) == pytest.approx([0.03, 0.1, 0.3, 1.0])
    assert kl_ticks(5e-7, 5.0) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
    assert kl_ticks(2.0, 2.5) == []
