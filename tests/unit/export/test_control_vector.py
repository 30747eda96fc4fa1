"""vector.gguf in llama.cpp itself: its own reader, its own addition, the same logits as `steered`."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stamm.base.errors import ExportError
from stamm.export.gguf_file import write_control_vector
from stamm.export.gguf_target import GgufTarget
from stamm.export.llama_cpp import LlamaCpp, ggml_functions
from stamm.export.target import ExportOptions
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.steering import SteeringHeader, SteeringVector, steered

SMALL = DecoderConfig(
    vocab_size=352, d_model=32, num_layers=4, ffn=PlainFFN(width=64), max_context=64, init_std=0.2
)
MODELS = {
    "apertus": SMALL,
    "qwen3": replace(SMALL, ffn=GatedFFN(width=64, activation="swiglu")),
}
HEADER = SteeringHeader(model_sha256="ab" * 32, method="means", strength=0.5)
TOKENS = torch.randint(352, (1, 40), generator=torch.Generator().manual_seed(1))


class _LoadInfo(ctypes.Structure):
    """common_control_vector_load_info; std::string is a pointer in the ABI that the wheel is built with."""

    _fields_ = (("strength", ctypes.c_float), ("name", ctypes.c_char_p))


class _Vector(ctypes.Structure):
    """std::vector: begin, end, end of storage."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("storage", ctypes.c_void_p))


class _Loaded(ctypes.Structure):
    """common_control_vector_data."""

    _fields_ = (("n_embd", ctypes.c_int), ("data", _Vector))


def read_by_llama_cpp(path: Path, strength: float) -> tuple[int, list[float]]:
    """Width and numbers, from layer 1 on, as the option --control-vector-scaled of llama.cpp reads them."""
    load = ggml_functions()._Z26common_control_vector_loadRKSt6vectorI31common_control_vector_load_infoSaIS0_EE
    info = _LoadInfo(strength, bytes(path))
    begin = ctypes.addressof(info)
    asked = _Vector(begin, begin + ctypes.sizeof(info), begin + ctypes.sizeof(info))
    loaded = _Loaded()
    load.argtypes, load.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_void_p
    load(ctypes.addressof(loaded), ctypes.addressof(asked))
    count = ((loaded.data.end or 0) - (loaded.data.begin or 0)) // 4
    numbers = (ctypes.c_float * count).from_address(loaded.data.begin) if count else ()
    return loaded.n_embd, list(numbers)


def set_vector(llama: LlamaCpp, width: int, numbers: list[float], last: int) -> None:
    """Add the vector from now on; none for no numbers."""
    add = ggml_functions().llama_set_adapter_cvec
    i32, pointer = ctypes.c_int32, ctypes.c_void_p
    add.argtypes, add.restype = (pointer, pointer, ctypes.c_size_t, i32, i32, i32), i32
    data = (ctypes.c_float * len(numbers))(*numbers) if numbers else None
    assert add(llama._ctx, data, len(numbers), width, 1, last) == 0


def model_in_llama_cpp(
    folder: Path, config: DecoderConfig, tokenizer: Path
) -> tuple[Decoder, LlamaCpp]:
    decoder = build_decoder(config, seed=2).eval()
    target = GgufTarget()
    target.configure(ExportOptions(quantization="F32"))
    target.write(folder, decoder, tokenizer / "tokenizer.json")
    return decoder, LlamaCpp(folder / "model-F32.gguf", config.max_context)


@pytest.mark.parametrize("architecture", MODELS)
@torch.no_grad()
def test_llama_cpp_adds_the_vector_as_stamm_does(
    architecture: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Would catch a layer counted from elsewhere, a type that llama.cpp does not read, another scale."""
    torch.set_num_threads(1)
    decoder, llama = model_in_llama_cpp(tmp_path, MODELS[architecture], inputs["tokenizer"])
    plain: Tensor = llama.logits(TOKENS)
    drawn = torch.Generator().manual_seed(3)
    for layers, strength in (((1,), 1.0), ((3,), -2.0), ((1, 2), 0.5)):
        added = {layer: torch.randn(32, generator=drawn) for layer in layers}
        vector = SteeringVector(layers=added, header=HEADER)
        write_control_vector(tmp_path / "vector.gguf", vector, decoder.config)
        width, numbers = read_by_llama_cpp(tmp_path / "vector.gguf", strength)
        assert (width, len(numbers)) == (32, 32 * max(layers))
        set_vector(llama, width, numbers, max(layers))
        found = llama.logits(TOKENS)
        with steered(decoder, vector, strength, any_model=True):
            expected = decoder(TOKENS)
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert (found - plain).abs().max() > 0.1
    set_vector(llama, 32, [], 0)
    assert torch.equal(llama.logits(TOKENS), plain)


@pytest.mark.parametrize(
    ("config", "layer", "why"),
    [
        (SMALL, 0, "the vector is of layer 0, and llama.cpp has no control vector there"),
        (
            replace(SMALL, ffn=PlainFFN(width=64, activation="gelu")),
            1,
            "llama.cpp cannot run the model: llama.cpp has no architecture with the activation 'gelu'",
        ),
    ],
)
def test_what_llama_cpp_cannot_add_is_refused(
    config: DecoderConfig, layer: int, why: str, tmp_path: Path
) -> None:
    vector = SteeringVector(layers={layer: torch.ones(32)}, header=HEADER)
    with pytest.raises(ExportError) as raised:
        write_control_vector(tmp_path / "vector.gguf", vector, config)
    assert why in str(raised.value) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
