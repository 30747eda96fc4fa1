"""The activation of a stored decoder is replaced, with what is recorded of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stamm.adapt import job
from stamm.adapt.config import ReplacementConfig, swapped_config
from stamm.adapt.records import ReplacementFile
from stamm.adapt.sample import mean_loss
from stamm.adapt.texts import two_texts
from stamm.base.errors import ConfigError, DataError, StammError
from stamm.base.schema import read_record
from stamm.models.config import DecoderConfig, GatedFFN, LowRank, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.loading import with_tokenizer
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from tests.unit.untrained_run import untrained_run


def _swap(inputs: dict[str, Path], out: Path, **settings: object) -> ReplacementFile:
    config = ReplacementConfig(threads=1, tokens=2048, **settings)  # type: ignore[arg-type]
    job.run(config, Workspace(folder=out, inputs=inputs))
    return read_record(ReplacementFile, out / "replacement.json")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """Inputs of the job: an untrained decoder with xIELU, its tokenizer and its packed corpus."""
    (tmp_path / "made").mkdir()
    found = untrained_run(tmp_path / "made")
    return {"start": found["model"], "tokenizer": found["tokenizer"], "pack": found["pack"]}


def test_the_record_has_the_losses_of_the_stored_models(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    found = _swap(inputs, out, activation="relu2")
    assert (found.before, found.after, len(found.layers)) == ("xielu", "relu2", 2)
    swapped, before = load_decoder(out / "model"), load_decoder(inputs["start"])
    assert swapped.config.ffn.spec.name == "relu2"
    start = with_tokenizer(before, inputs["tokenizer"])
    held_out = two_texts(
        ReplacementConfig(tokens=2048), Workspace(folder=out, inputs=inputs), start
    ).measured
    assert found.loss == pytest.approx(mean_loss(before, held_out, 512), rel=1e-6)
    assert found.swapped_loss == pytest.approx(mean_loss(swapped, held_out, 512), rel=1e-6)
    assert found.initial_loss is not None
    for layer in found.layers:
        assert layer.output_error < layer.scaled_output_error


def test_a_function_in_other_words_changes_nothing(inputs: dict[str, Path], tmp_path: Path) -> None:
    """SiLU is Swish with beta = 1."""
    config = replace(
        load_decoder(inputs["start"]).config, ffn=PlainFFN(width=48, activation="silu")
    )
    save_decoder(build_decoder(config, seed=3), inputs["start"])
    out = tmp_path / "out"
    out.mkdir()
    found = _swap(inputs, out, activation="swish_beta")
    assert found.swapped_loss == pytest.approx(found.loss, rel=1e-5)
    ids = torch.arange(24)[None] % 300
    with torch.no_grad():
        old, new = (load_decoder(folder)(ids) for folder in (inputs["start"], out / "model"))
    assert torch.allclose(old, new, atol=2e-4 * float(old.abs().max()))


def test_the_same_inputs_give_the_same_bytes(inputs: dict[str, Path], tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _swap(inputs, tmp_path / name, activation="gelu")
        made.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert made[0] == made[1]


def test_half_of_a_file_is_fitted_on_and_the_other_half_measured(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "The river is wide."}\n{"text": "Trees grow by the road."}\n')
    out = tmp_path / "out"
    out.mkdir()
    found = _swap({**inputs, "pack": tmp_path}, out, activation="gelu", text=str(text))
    assert found.calibration.name == "first half of text.jsonl"
    assert 0 < found.calibration.tokens < 30 and 0 < found.measured.tokens < 30
    assert found.calibration.sha256 != found.measured.sha256
    text.write_text('{"text": "The river is wide."}\n')
    with pytest.raises(DataError, match="holds one text"):
        _swap(inputs, out, activation="gelu", text=str(text))
    del inputs["pack"]
    with pytest.raises(ConfigError, match="no packed corpus"):
        _swap(inputs, out, activation="gelu")


@pytest.mark.parametrize(
    ("ffn", "activation", "what"),
    [
        (PlainFFN(), "xielu", "has xielu already"),
        (PlainFFN(), "swiglu", "xielu, which is of one input"),
        (GatedFFN(activation="swiglu"), "relu2", "swiglu, which is gated"),
        (PlainFFN(linear=LowRank(rank=8)), "relu2", "matrices are LowRank"),
    ],
)
def test_an_activation_that_does_not_fit_is_refused(
    ffn: PlainFFN | GatedFFN, activation: str, what: str
) -> None:
    with pytest.raises(StammError, match=what):
        swapped_config(DecoderConfig(ffn=ffn), activation)


def test_a_model_that_diverged_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    decoder = load_decoder(inputs["start"])
    with torch.no_grad():
        decoder.model.embed_tokens.weight.fill_(math.nan)
    save_decoder(decoder, inputs["start"])
    with pytest.raises(DataError, match="layer 0 has activations that are not finite"):
        _swap(inputs, tmp_path, activation="gelu")
