"""PFO as part of a training run: exact at the first update, the formula later, off without a weight."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from stamm.align.data.encoded import EncodedExamples
from stamm.align.losses.dpo import DPO, REBEL
from stamm.align.losses.qrpo import QRPO
from stamm.align.training.config import (
    PFO,
    SFT,
    BradleyTerry,
    Loss,
)
from stamm.base.errors import ConfigError
from stamm.base.files import sha256_file
from stamm.engine.config import EngineConfig, Parallel
from stamm.models.config import GatedFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.lora_config import Lora
from stamm.models.serialization import load_decoder, save_decoder
from stamm.optim.schedules import BatchStage
from tests.unit.align.finetuned import MODEL, config, fine_tune, metrics, pairs, trained

WHOLE = (BatchStage(size=8),)
BITS = ("metrics.jsonl", "model/model.safetensors")
FEW: dict[str, Any] = {"batch": WHOLE, "epochs": 2.0}


def bits(arm: Path) -> dict[str, str]:
    return {name: sha256_file(arm / name) for name in BITS}


def again(folder: Path, *given: Any, **changes: Any) -> Path:
    """Another run on the same data."""
    shutil.rmtree(folder / "arms", ignore_errors=True)
    return fine_tune(folder, *given, **changes)


def features(decoder: Decoder, data: EncodedExamples, after_norm: bool) -> torch.Tensor:
    """Last hidden states that predict the answers' tokens, each answer alone."""
    states = decoder.model if after_norm else decoder.model.before_norm
    found = []
    for answer in data.answers:
        ids = torch.tensor(list(answer.ids))
        supervised = torch.tensor(list(answer.supervised)[1:], dtype=torch.bool)
        found.append(states(ids[None, :-1])[0][supervised])
    return torch.cat(found)


def test_without_a_weight_the_training_has_the_same_bits(tmp_path: Path) -> None:
    without = bits(fine_tune(tmp_path, pairs(), QRPO(), **FEW))
    assert bits(again(tmp_path, pairs(), QRPO(), pfo=PFO(weight=0.0), **FEW)) == without
    assert bits(again(tmp_path, pairs(), QRPO(), pfo=PFO(weight=0.1), **FEW)) != without


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["all", "lora"])
def test_the_first_update_is_that_without_the_term(tmp_path: Path, lora: Lora | None) -> None:
    without = metrics(fine_tune(tmp_path, pairs(), DPO(), lora=lora, **FEW))
    found = metrics(again(tmp_path, pairs(), DPO(), pfo=PFO(weight=100.0), lora=lora, **FEW))
    assert found[0].pop("train/pfo") == 0.0
    assert found[0] == without[0]
    assert found[1]["train/pfo"] > 0.0
    # At the second step the loss is that of the same model; only the gradient is another one.
    assert found[1]["train/loss"] == without[1]["train/loss"]
    assert found[1]["optim/gradient_norm"] != without[1]["optim/gradient_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before_norm", "after_norm"])
def test_the_recorded_distance_is_the_formula_on_the_models(
    tmp_path: Path, where: Literal["before_norm", "after_norm"]
) -> None:
    settings: dict[str, Any] = {"batch": WHOLE, "pfo": PFO(weight=0.5, features=where)}
    arm = fine_tune(tmp_path, pairs(), REBEL(), epochs=3.0, **settings)
    data = EncodedExamples.open(tmp_path / "prepared")
    with torch.no_grad():
        models = (trained(arm), load_decoder(tmp_path / "start"))
        new, old = (features(model, data, where == "after_norm") for model in models)
    expected = ((new - old).square().sum(-1) / old.square().sum(-1)).mean().item()
    longer = metrics(again(tmp_path, pairs(), REBEL(), epochs=4.0, **settings))
    assert longer[3]["train/pfo"] == pytest.approx(expected, rel=1e-4)
    parts = again(tmp_path, pairs(), REBEL(), epochs=4.0, micro_batch=3, **settings)
    for one, other in zip(longer, metrics(parts), strict=True):
        for name in ("train/pfo", "train/loss", "optim/gradient_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-9), name


@pytest.mark.slow
def test_a_larger_weight_keeps_features_nearer(tmp_path: Path) -> None:
    ends = [
        metrics(again(tmp_path, pairs(), QRPO(), epochs=12.0, batch=WHOLE, pfo=PFO(weight=w)))[-1]
        for w in (1e-6, 1.0)
    ]
    assert ends[1]["train/pfo"] < ends[0]["train/pfo"] / 4


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2.0, "pfo": PFO(weight=0.5, distance="cosine")}
    arm = fine_tune(tmp_path, pairs(), QRPO(), **settings)
    whole = bits(arm)
    shutil.rmtree(arm / "model")
    (arm / "summary.json").unlink()
    shutil.rmtree(max((arm / "checkpoints").iterdir()))
    lines = (arm / "metrics.jsonl").read_text().splitlines(keepends=True)
    (arm / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert bits(fine_tune(tmp_path, pairs(), QRPO(), **settings)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_the_first_distance_is_zero_in_bfloat16_too(tmp_path: Path, bias: bool) -> None:
    model = replace(MODEL, ffn=GatedFFN(width=32), qk_norm=False, qkv_bias=True) if bias else MODEL
    save_decoder(build_decoder(model, 5), tmp_path / "start")
    engine = EngineConfig(threads=1, compile="off", precision="bfloat16")
    arm = fine_tune(tmp_path, pairs(), DPO(), pfo=PFO(), engine=engine, **FEW)
    first, second = metrics(arm)
    assert first["train/pfo"] == 0.0 and second["train/pfo"] > 0.0


@pytest.mark.parametrize("loss", [SFT(), BradleyTerry()], ids=str)
def test_other_losses_are_refused(loss: Loss) -> None:
    with pytest.raises(ConfigError, match=f"pfo.* is not defined for {type(loss).__name__}"):
        config(loss, pfo=PFO())


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ({"parallel": Parallel(tensor=2)}, "engine.parallel.context=1"),
        ({"parallel": Parallel(context=2)}, "engine.parallel.tensor=1"),
        ({"precision": "float8"}, "engine.precision=float32 or bfloat16"),
    ],
)
def test_divisions_and_precisions_that_are_not_exact_are_refused(
    engine: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"pfo.*{named}"):
        config(DPO(), pfo=PFO(), engine=EngineConfig(threads=1, compile="off", **engine))


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight"):
        PFO(weight=weight)
