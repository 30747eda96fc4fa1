"""The plan of an export has the files and bytes that the export writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError
from stamm.cli.main import main
from stamm.export.config import ExportConfig
from stamm.export.gguf_target import GgufTarget
from stamm.export.onnx_target import OnnxTarget
from stamm.export.plan import export_plan
from stamm.export.target import ExportOptions
from stamm.export.transformers_target import TransformersTarget
from stamm.models.config import LowRank
from tests.unit.export.test_gguf import LAYOUTS, decoder_of

TARGETS = {"transformers": TransformersTarget, "gguf": GgufTarget, "onnx": OnnxTarget}
HEADER = 60_000  # headers, the tokenizer in a GGUF file
CASES = [
    ("plain", "transformers", "F32"), ("llama", "transformers", "BF16"), ("tied", "gguf", "F32"),
    ("llama3 rope", "gguf", "Q8_0"), ("qwen3", "gguf", "BF16"), ("tied", "onnx", "F32"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "target", "kind"), CASES)
def test_files_and_bytes_are_those_written(
    layout: str, target: str, kind: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    decoder = decoder_of(LAYOUTS[layout][0])
    config = ExportConfig(target=target, quantization=kind, max_shard_bytes=40_000)
    writer = TARGETS[target]()
    writer.configure(ExportOptions(quantization=kind, max_shard_bytes=40_000))
    writer.write(tmp_path, decoder, inputs["tokenizer"] / "tokenizer.json")
    planned = export_plan(config, decoder.config)
    for name, size in planned.files.items():
        assert 0 <= (tmp_path / name).stat().st_size - size < HEADER
    assert len(planned.files) == len(list(tmp_path.glob("model-*")) or ["model.onnx_data"])
    assert planned.model == 4 * sum(p.numel() for p in decoder.parameters())


def test_memory_to_write_is_the_largest_tensor_and_matrices_multiplied_out() -> None:
    plain = LAYOUTS["plain"][0]
    ffn = replace(plain.ffn, linear=LowRank(rank=4))
    largest = 4 * plain.vocab_size * plain.d_model
    layers = 4 * (plain.num_layers - 1) * 2 * plain.d_model * plain.ffn.width  # the first is dense
    assert export_plan(ExportConfig(), plain).write == largest
    assert export_plan(ExportConfig(target="onnx"), plain).write == 2 * largest
    assert export_plan(ExportConfig(), replace(plain, ffn=ffn)).write == largest + layers


def test_billions_of_parameters_are_planned_without_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "pretrain.apertus_8b", "quantization=BF16", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == [
        *(f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)),
        "memory",
    ]
    assert main(["export", "no.recipe", "--dry-run"]) == 2


def test_what_a_target_cannot_hold_has_no_plan() -> None:
    with pytest.raises(ConfigError, match="ignores the factors of Llama3Rope"):
        rope = LAYOUTS["llama with llama3 rope"][0]
        qwen3 = LAYOUTS["qwen3"][0].__class__(ffn=rope.ffn, rope=rope.rope)
        export_plan(ExportConfig(target="gguf"), qwen3)
