"""Memory-mapped weights: the numbers of the file, which are read again after their pages were dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stamm.models.config import DecoderConfig, Llama3Rope, LowRank, PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.mapped_weights import drop_pages, map_weights
from stamm.models.serialization import load_decoder, save_decoder

CONFIG = DecoderConfig(
    vocab_size=90,
    d_model=32,
    num_layers=2,
    ffn=PlainFFN(width=48, compat="eps", linear=LowRank(rank=4)),
    rope=Llama3Rope(theta=10_000.0, original_context=16),
    tied_embeddings=True,
    max_context=64,
)


def test_mapped_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.randn(3000, 5), "b": torch.randn(7).bfloat16()}, file)
    mapped = map_weights(file)
    for name, tensor in load_file(file).items():
        assert mapped[name].dtype == tensor.dtype
        assert torch.equal(mapped[name], tensor)
        drop_pages(mapped[name])
        assert torch.equal(mapped[name], tensor)


def test_dropped_pages_are_read_from_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(100_000), "b": torch.ones(100_000)}, file)
    mapped = map_weights(file)
    mapped["a"].zero_()
    mapped["b"][50_000:] = 2.0
    drop_pages(mapped["a"])
    assert bool((mapped["a"] == 1).all())
    assert bool((mapped["b"][60_000:] == 2).all())
    assert bool((load_file(file)["b"] == 1).all())


def test_a_tensor_in_memory_is_not_dropped(tmp_path: Path) -> None:
    save_file({"a": torch.ones(10)}, tmp_path / "model.safetensors")
    mapped = map_weights(tmp_path / "model.safetensors")
    tensor = torch.ones(100_000)
    drop_pages(tensor)
    assert bool((tensor == 1).all())
    assert len(mapped) == 1


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        map_weights(file)


def test_a_mapped_decoder_computes_the_same(tmp_path: Path) -> None:
    save_decoder(build_decoder(CONFIG, seed=3), tmp_path)
    mapped, copied = load_decoder(tmp_path, mapped=True), load_decoder(tmp_path)
    assert [name for name, _ in mapped.named_parameters()] == [
        name for name, _ in copied.named_parameters()
    ]
    assert not any(tensor.is_meta for tensor in (*mapped.parameters(), *mapped.buffers()))
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        torch.testing.assert_close(mapped(tokens), copied(tokens))
        torch.testing.assert_close(mapped.merged()(tokens), copied.merged()(tokens))
