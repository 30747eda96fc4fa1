"""Every activation of the catalogue, and own ones, in an exported decoder: transformers and ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stamm.activations import Parameter, Piece, Softplus
from stamm.activations.catalog import ENTRIES, get
from stamm.activations.emitters.program import program_of
from stamm.activations.spec import Factor, Gated, Spec
from stamm.export.onnx_target import OnnxRuntime, OnnxTarget
from stamm.export.parity import difference, random_tokens
from stamm.export.transformers_target import write_folder
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.models.hub import HubModel
from tests.unit.export.test_gguf import SMALL, decoder_of

# Together they have every operation, kind of parameter and form of block; the others are swept.
SAMPLE = (
    "ptelu", "velu", "isru", "aglu", "geglu", "snake", "erf", "cosine", "atlu", "drelu", "xssslur2", "swiglu_oai",
)  # fmt: skip
OWN = (
    Spec(
        name="own_table",
        title="A table that a trained parameter multiplies",
        pieces=(Piece(where="all x", formula="a*exp(-x**4/8) + 1/2"),),
        parameters=(Parameter(name="a", initial=0.5, bijection=Softplus()),),
        source="",
    ),
    Spec(
        name="own_gated",
        title="Both factors stated",
        pieces=(Piece(where="all x", formula="a*tanh(x)"),),
        parameters=(Parameter(name="a", initial=0.5, bijection=Softplus()),),
        arity=Gated(order=2, up=Factor(pieces=(Piece(where="all x", formula="cos(x)"),), anchor=("0", "1"))),
        source="",
    ),
)  # fmt: skip
CASES = [
    pytest.param(spec, id=spec.name, marks=pytest.mark.slow if spec.name in SAMPLE else pytest.mark.sweep)
    for spec in ENTRIES
] + [pytest.param(spec, id=spec.name, marks=pytest.mark.slow) for spec in OWN]  # fmt: skip


def config_of(spec: Spec) -> DecoderConfig:
    gated = isinstance(spec.arity, Gated)
    name = spec.name if spec in ENTRIES else spec
    ffn = (GatedFFN if gated else PlainFFN)(width=48, activation=name)
    return replace(SMALL, ffn=ffn, qk_norm=not gated or spec.name == "drelu")


@pytest.mark.parametrize("spec", CASES)
def test_an_exported_decoder_has_the_logits_of_the_original(
    spec: Spec, inputs: dict[str, Path], tmp_path: Path
) -> None:
    decoder = decoder_of(config_of(spec))
    tokens = random_tokens(SMALL.vocab_size, 2, 40, seed=1)
    tokenizer = inputs["tokenizer"] / "tokenizer.json"
    for name in ("transformers", "onnx"):
        (tmp_path / name).mkdir()
    write_folder(tmp_path / "transformers", decoder, tokenizer)
    OnnxTarget().write(tmp_path / "onnx", decoder, tokenizer)
    for engine in (HubModel(tmp_path / "transformers"), OnnxRuntime(tmp_path / "onnx")):
        measured = difference("", decoder, engine.logits, tokens)
        assert measured.max_relative < 2e-5, (type(engine).__name__, measured)


@pytest.mark.slow
def test_the_sample_has_every_operation() -> None:
    def parts(spec: Spec) -> set[str]:
        graph = program_of(spec).forward[torch.float32]
        names = {graph.nodes[place].name for place in graph.needed()}
        names |= {type(parameter.bijection).__name__ for parameter in spec.parameters}
        second = isinstance(spec.arity, Gated) and spec.arity.up is not None
        return names | {type(spec.arity).__name__, "up" if second else "no up"}

    assert set().union(*map(parts, ENTRIES)) == set().union(*(parts(get(n)) for n in SAMPLE))
