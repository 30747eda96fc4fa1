"""ONNX graphs in ONNX Runtime: logits, generation with a cache, padding and refusals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from stamm.activations import Piece
from stamm.activations.spec import Spec
from stamm.base.errors import ConfigError
from stamm.base.files import read_json
from stamm.export import job, onnx_graph
from stamm.export.config import ExportConfig
from stamm.export.onnx_target import OnnxRuntime, OnnxTarget
from stamm.export.parity import difference, random_tokens
from stamm.export.runtime_support import onnx_reasons
from stamm.export.transformers_target import write_folder
from stamm.models.config import GatedFFN, Llama3Rope, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hub import HubModel
from stamm.runs.job import Workspace
from tests.unit.export.test_gguf import SMALL, decoder_of

FFNS = [
    *(PlainFFN(width=48, activation=name) for name in ("xielu", "relu2", "relu", "gelu", "silu")),
    *(GatedFFN(width=48, activation=name) for name in ("swiglu", "geglu", "reglu")),
]
TABLE = Spec(
    name="table",
    title="An integral that is a table",
    pieces=(Piece(where="all x", formula="exp(-x**4/8)"),),
    source="",
)
# Activations that transformers does not have: trained parameters, erf, atan2, powers, a table.
OWN = [
    *(PlainFFN(width=48, activation=spec) for spec in ("mish", "xgelu", "xatlu", "velu", TABLE)),
    *(GatedFFN(width=48, activation=spec) for spec in ("xatlu_glu", "xswiglu")),
]


def engine_of(folder: Path, decoder: Decoder, inputs: dict[str, Path]) -> OnnxRuntime:
    OnnxTarget().write(folder, decoder, inputs["tokenizer"] / "tokenizer.json")
    return OnnxRuntime(folder)


@pytest.mark.slow
def test_an_export_passes_its_gates(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = ExportConfig(
        target="onnx", parity_rows=2, parity_tokens=40, prompt_tokens=6, sample_tokens=8, threads=1
    )
    job.run(config, Workspace(folder=tmp_path, inputs=inputs))
    report = read_json(tmp_path / "onnx" / "parity.json")
    assert max(one["max_absolute"] for one in report["comparisons"]) < 1e-5
    assert report["greedy"] == {"prompts": 2, "tokens": 16, "equal": 16}
    names = ["README.md", "config.json", "generation_config.json", "model.onnx", "model.onnx_data",
             "parity.json", "samples.json", "tokenizer.json", "tokenizer_config.json"]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == names


@pytest.mark.slow
@pytest.mark.parametrize("ffn", [*FFNS, *OWN], ids=lambda ffn: ffn.spec.name)
def test_an_activation_agrees(
    ffn: PlainFFN | GatedFFN, inputs: dict[str, Path], tmp_path: Path
) -> None:
    rope = Llama3Rope(theta=10_000.0, original_context=16)
    plain = isinstance(ffn, GatedFFN)
    config = replace(
        SMALL, ffn=ffn, rope=rope, qk_norm=not plain, qkv_bias=plain, tied_embeddings=plain
    )
    decoder = decoder_of(config)
    tokens = random_tokens(SMALL.vocab_size, 1, 90, seed=1)
    found = difference("", decoder, engine_of(tmp_path, decoder, inputs).logits, tokens)
    assert found.max_absolute < 2e-5


@pytest.mark.slow
def test_a_negated_alpha_fails_the_gate(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = onnx_graph.add_activation

    def wrong(g: Any, spec: Spec, inputs: list[str], values: dict[str, float]) -> str:
        return right(g, spec, inputs, {**values, "alpha_n": -values["alpha_n"]})

    monkeypatch.setattr(onnx_graph, "add_activation", wrong)
    decoder = decoder_of(SMALL)
    tokens = random_tokens(SMALL.vocab_size, 1, 30, seed=1)
    found = difference("", decoder, engine_of(tmp_path, decoder, inputs).logits, tokens)
    assert found.max_relative > 1e-3


@pytest.mark.slow
def test_generation_equals_transformers_over_200_tokens(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    config = replace(SMALL, max_context=256, init_std=0.3)
    decoder = build_decoder(config, seed=5).eval()
    with torch.no_grad():
        decoder.lm_head.weight[2] = 0  # </s> does not end it
    engine = engine_of(tmp_path, decoder, inputs)
    (tmp_path / "hub").mkdir()
    write_folder(tmp_path / "hub", decoder, inputs["tokenizer"] / "tokenizer.json")
    prompt = [1, 80, 90, 100]
    written = engine.generate(prompt, 200)
    assert len(written) == 200
    assert written == HubModel(tmp_path / "hub").write(prompt, 200)


@pytest.mark.slow
def test_padding_on_the_left_changes_nothing(inputs: dict[str, Path], tmp_path: Path) -> None:
    engine = engine_of(tmp_path, decoder_of(SMALL), inputs)
    tokens = np.array([[3, 3, 1, 90, 100]])
    given = {
        "input_ids": tokens,
        "attention_mask": np.array([[0, 0, 1, 1, 1]]),
        "position_ids": np.array([[0, 0, 0, 1, 2]]),
        **{name: engine._empty for name, _ in engine._names},
    }
    padded = engine._session.run(None, given)[0][:, 2:]
    alone = engine.logits(torch.from_numpy(tokens[:, 2:])).numpy()
    np.testing.assert_allclose(padded, alone, atol=1e-5)


def activation_of(folder: Path) -> onnxruntime.InferenceSession:
    """The operations of an exported graph between the matrices of its first feed-forward block."""
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    inner = "model.layers.0.mlp."
    by_weight = {name: node for node in graph.node for name in node.input if name.startswith(inner)}
    begins = [
        by_weight[f"{inner}{name}_proj.weight"].output[0]
        for name in ("gate", "up")
        if f"{inner}{name}_proj.weight" in by_weight
    ]
    end = by_weight[f"{inner}down_proj.weight"].input[0]
    makers = {name: node for node in graph.node for name in node.output}
    needed, open_names = set[str](), [end]
    while open_names:
        name = open_names.pop()
        if name in makers and name not in begins and name not in needed:
            needed.add(name)
            open_names += makers[name].input
    info = onnx.helper.make_tensor_value_info
    cut = onnx.helper.make_graph(
        [node for node in graph.node if needed & set(node.output)],
        "activation",
        [info(name, onnx.TensorProto.FLOAT, [None]) for name in begins],
        [info(end, onnx.TensorProto.FLOAT, [None])],
        [tensor for tensor in graph.initializer if not tensor.external_data],
    )
    opset = onnx.helper.make_opsetid("", onnx_graph.OPSET)
    model = onnx.helper.make_model(cut, opset_imports=[opset], ir_version=onnx_graph.IR_VERSION)
    return onnxruntime.InferenceSession(model.SerializeToString())


def exact_xielu(x: mpmath.mpf, alpha_p: float, alpha_n: float, beta: float) -> mpmath.mpf:
    if x > 0:
        return alpha_p * x * x + beta * x
    return alpha_n * (mpmath.expm1(x) - x) + beta * x


EXACT: dict[str, Callable[..., mpmath.mpf]] = {
    "xielu": exact_xielu,
    "relu": lambda x: max(x, mpmath.mpf(0)),
    "relu2": lambda x: max(x, mpmath.mpf(0)) ** 2,
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
}
MOST_ULPS: dict[str, Callable[[float], float]] = {
    "xielu": lambda x: 1.5,
    "silu": lambda x: 3,
    "gelu": lambda x: 3 + x * x,  # the gate amplifies the rounding of x/sqrt(2) by x^2
}
EXACT |= {"swiglu": EXACT["silu"], "geglu": EXACT["gelu"], "reglu": EXACT["relu"]}


@pytest.mark.parametrize("ffn", FFNS, ids=lambda ffn: ffn.spec.name)
def test_an_activation_is_exact(
    ffn: PlainFFN | GatedFFN, inputs: dict[str, Path], tmp_path: Path
) -> None:
    """Every third bfloat16 between 2^-40 and 2^7 in size, and 0, against the true value in float32 ulps."""
    gated = isinstance(ffn, GatedFFN)
    decoder = decoder_of(replace(SMALL, ffn=ffn, qk_norm=not gated))
    onnx_graph.write_onnx(tmp_path, decoder)
    session = activation_of(tmp_path)
    bits = np.concatenate([[0], np.arange((127 - 40) << 7, (127 + 7) << 7, 3)]).astype(np.uint32)
    x = np.concatenate([bits << 16, (bits << 16) | 1 << 31]).view(np.float32)
    given = [x, np.ones_like(x)][: len(session.get_inputs())]
    names = [entry.name for entry in session.get_inputs()]
    (y,) = session.run(None, dict(zip(names, given, strict=True)))
    act = decoder.model.layers[0].get_submodule("mlp.act_fn")
    values = act.effective()  # type: ignore[operator]
    plain = {"swiglu": "silu", "geglu": "gelu"}.get(ffn.spec.name, ffn.spec.name)
    most = MOST_ULPS.get(plain, lambda x: 0)
    with mpmath.workprec(200):
        exact = [EXACT[ffn.spec.name](mpmath.mpf(float(value)), *values.values()) for value in x]
        # xIELU has a second zero, at which its two terms cancel: there in ulps of the smaller one.
        # Where a gate is below the smallest normal number, its own spacing counts.
        for at, found, truth in zip(map(float, x), map(float, y), exact, strict=True):
            size = abs(float(truth)) + abs(values.get("beta", 0) * at)
            ulp = max(2.0 ** (math.frexp(size)[1] - 24), max(abs(at), 1) * 2.0**-149)
            wrong = float(abs(found - truth) / ulp)
            assert wrong <= most(at), (at, wrong)


def test_what_the_graph_cannot_hold_is_refused() -> None:
    neurons = replace(SMALL, ffn=PlainFFN(activation="xielu", shapes="neuron"))
    assert "one set of parameters of 'xielu' per layer" in onnx_reasons(neurons)[0]
    for refused, reason in (
        (replace(SMALL, qk_norm=False), "only inside Apertus.*Train with model.qk_norm=true"),
        (
            replace(
                SMALL,
                qk_norm=False,
                ffn=GatedFFN(width=48),
                num_heads=3,
                num_kv_heads=1,
                head_dim=8,
            ),
            "does not divide by num_heads = 3",
        ),
    ):
        (found,) = onnx_reasons(refused)
        assert re.search(reason, found)
    for ffn in (*FFNS, *OWN):
        assert not onnx_reasons(replace(SMALL, ffn=ffn))
    with pytest.raises(ConfigError, match=r"'Q8_0' is not a type that onnx has: F32"):
        ExportConfig(target="onnx", quantization="Q8_0")
