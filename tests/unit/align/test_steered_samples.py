"""`stamm sample … vector=FILE`: completions of the steered model, and when they are sampled again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stamm.align.records import BadRow
from stamm.align.sampling import sample_job
from stamm.align.sampling.config import SampleConfig
from stamm.align.sampling.prompts import read_prompts
from stamm.base.errors import ConfigError, DataError
from stamm.models.loading import open_model
from stamm.models.model_source import ModelSource
from stamm.models.steering import (
    SteeringHeader,
    SteeringVector,
    parameters_sha256,
    read_vector,
    write_vector,
)
from tests.unit.align.test_sample_job import ROWS, config, lines, workspace


def vector_file(folder: Path, sha256: str | None = None, name: str = "v.safetensors") -> str:
    """The file of a vector for the model of `workspace`."""
    model = open_model(ModelSource(model=folder / "model", tokenizer=folder / "tokenizer"))
    drawn = torch.Generator().manual_seed(1)
    added = 3 * torch.randn(model.decoder.config.d_model, generator=drawn)
    found = sha256 or parameters_sha256(model.decoder)
    header = SteeringHeader(model_sha256=found, method="means", strength=1.0)
    write_vector(folder / name, SteeringVector(layers={0: added}, header=header))
    return str(folder / name)


def completions(folder: Path, **options: Any) -> list[list[int]]:
    place = workspace(folder)
    sample_job.run(config(folder, ROWS, n=1, temperature=0.0, **options), place)
    return [line["token_ids"] for line in lines(place.folder / sample_job.COMPLETIONS)]


def test_completions_are_those_of_the_steered_model(tmp_path: Path) -> None:
    """Would catch a vector that is not read, and a shard that is kept when the vector or strength changes."""
    workspace(tmp_path)
    file = vector_file(tmp_path)
    plain = completions(tmp_path)
    found = completions(tmp_path, vector=file, strength=2.0)
    assert found == by_hand(tmp_path, 2.0) != plain
    assert completions(tmp_path, vector=file, strength=0.0) == plain
    assert completions(tmp_path, vector=file, strength=2.0) == found
    assert completions(tmp_path) == plain


@torch.no_grad()
def by_hand(folder: Path, strength: float) -> list[list[int]]:
    """Greedy completions, recomputed from scratch for each token, with a plain hook of torch."""
    source = ModelSource(model=folder / "model", tokenizer=folder / "tokenizer")
    model = open_model(source, chat=True)
    added = read_vector(folder / "v.safetensors").layers[0]
    model.decoder.model.layers[0].register_forward_hook(lambda _m, _i, out: out + strength * added)
    found = []
    for prompt in read_prompts(folder / "prompts.jsonl"):
        assert not isinstance(prompt, BadRow)
        ids = list(model.chat.encode(prompt.conversation, prompt=True).ids)
        tokens: list[int] = []
        while len(tokens) < 5 and not model.chat.stop_ids & set(tokens):
            logits = model.decoder(torch.tensor([ids + tokens]))
            tokens.append(int(logits[0, -1].argmax()))
        found.append(tokens)
    return found


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"strength": 2.0}, "strength = 2.0 and any_model are read with vector=FILE"),
        ({"any_model": True}, "and any_model are read with vector=FILE"),
        ({"vector": "v", "engine": "vllm"}, "vector = 'v' is not read with engine=vllm"),
        ({"vector": "v", "strength": float("inf")}, "strength = inf must be finite"),
    ],
)
def test_settings_that_are_not_read_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SampleConfig(prompts="p", **settings)


def test_vectors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    workspace(tmp_path)
    other = vector_file(tmp_path, "0" * 64, "other.safetensors")
    with pytest.raises(ConfigError, match=r"fitted to weights '000000000000'.*any_model=true"):
        completions(tmp_path, vector=other)
    assert completions(tmp_path, vector=other, any_model=True)
    with pytest.raises(DataError, match="cannot read"):
        completions(tmp_path, vector=str(tmp_path / "missing.safetensors"))
