"""Exports of imported and of tuned models: every target in its engine, and early refusals.

The weights are random, and the truth is transformers on the folder that was imported.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stamm.base.files import read_json, sha256_file, write_json
from stamm.cli.main import main
from stamm.export.config import quantizations
from stamm.export.llama_cpp import LlamaCpp
from stamm.export.onnx_target import OnnxRuntime
from stamm.export.registry import TARGETS
from stamm.models.hub_folder import load_hub
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder
from tests.unit.models.hub_models import base_tokenizer, hub_model

SIZES = {"hidden_size": 256, "intermediate_size": 256, "max_position_embeddings": 128}
KINDS = ("llama", "mistral", "phi3", "qwen2", "qwen3", "arcee", "apertus")
CHATS = {"qwen2": "chatml", "llama": "llama3", "apertus": "chatml"}
SMALL = ("parity_rows=1", "parity_tokens=24", "threads=1")
TEXT = "The wind turns the mill, and the mill grinds flour. Hello!\n"  # Qwen2's class takes digits apart
READ = ("held_out_tokens=96", "samples=1", "prompt_tokens=4", "sample_tokens=4")
TYPES = [
    (target, kind)
    for target, built_in in TARGETS.items()
    for kind in quantizations(built_in.support())
]
# Largest difference of a logit, as a share of the largest, for random weights.
LARGEST = {
    "F32": 3e-5,
    "F16": 0.01,
    "BF16": 0.05,
    "Q8_0": 0.1,
    "Q6_K": 0.3,
    "Q5_K": 0.5,
    "Q4_K": 0.8,
}
TOKENS = torch.arange(1, 97)[None]


def exported_logits(folder: Path, target: str, kind: str) -> Tensor:
    """Logits of an export in its engine, for TOKENS."""
    if target == "gguf":
        return LlamaCpp(folder / f"model-{kind}.gguf", 128).logits(TOKENS)
    if target == "onnx":
        return OnnxRuntime(folder).logits(TOKENS)
    return transformers_logits(folder)


def transformers_logits(folder: Path) -> Tensor:
    """Logits of a folder in transformers, in float32, for TOKENS."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
    return found


def check_exports(run: str, arm: str, truth: Tensor, types: Sequence[tuple[str, str]]) -> None:
    """Export the arm as each type, and compare its logits with `truth`."""
    for target, kind in types:
        gate = ["held_out=held.txt", *READ]
        gate += ["bits_tolerance=0.03"] if kind.endswith("_K") else []  # random weights
        words = [f"target={target}", f"quantization={kind}", *SMALL, *gate]
        assert main(["export", run, *words]) == 0, (target, kind)
        name = target if kind == "F32" else f"{target}_{kind.lower()}"
        folder = Path(run, "arms", arm, "export", name)
        record = read_json(folder / "parity.json")
        assert record["passed"], name
        assert record["held_out"] == f"the file held.txt, SHA-256 {sha256_file(Path('held.txt'))}"
        assert sum(one["differing"] for one in record["tokens"]) == 0, name
        found = exported_logits(folder, target, kind)
        apart = float((found - truth).abs().max() / truth.abs().max())
        assert apart < LARGEST[kind], (name, apart)


def cut_by(folder: str, step: str) -> None:
    """Change how the tokenizer of a folder cuts texts."""
    file = Path(folder, "tokenizer.json")
    write_json(file, {**read_json(file), "pre_tokenizer": {"type": step}})


def imported_base(kind: str, step: str = "", **sizes: Any) -> None:
    """The run "runs/base" of a model without a chat format, in bfloat16, and a file of text."""
    base_tokenizer(Path("base"))
    if step:
        cut_by("base", step)
    hub_model(Path("base"), kind, torch.bfloat16, **{**SIZES, **sizes})
    Path("held.txt").write_text(TEXT * 20)
    assert main(["import", "base"]) == 0


@pytest.mark.slow
def test_float16_of_a_model_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    imported_base("qwen2", num_hidden_layers=1)
    types = [("gguf", "F16"), ("onnx", "F32")]
    check_exports("runs/base", "base", transformers_logits(Path("base")), types)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_every_kind_of_imported_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    imported_base(kind)
    check_exports("runs/base", "base", transformers_logits(Path("base")), TYPES)
    words = ["target=gguf", "quantization=Q4_K", "held_out=not_measured", *SMALL]
    assert main(["export", "runs/base", *words, "--out", "unmeasured"]) == 0
    record = read_json(Path("unmeasured/gguf_q4_k/parity.json"))
    assert (record["measured"], record["passed"], record["bits"]) == (False, False, [])


def chat_model(kind: str, **sizes: Any) -> None:
    """A folder "chat" of a chat model in bfloat16, and conversations."""
    imported_folder(Path("chat"), TEMPLATES[CHATS.get(kind, "chatml")])
    hub_model(Path("chat"), kind, torch.bfloat16, **{**SIZES, **sizes})
    Path("held.txt").write_text(TEXT * 20)
    rows = [
        {"prompt": f"What does mill {name} do?", "completion": f"Mill {name} grinds flour."}
        for name in "abcdefghijklmnop"
    ]
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


SFT = (
    "run", "align.sft", "data=chats.jsonl", "train.lora=Lora", "train.lora.rank=4", "train.sequences=8",
    "train.batch.0.size=4", "train.engine.threads=1", "prepare.held_out=0.5", "sample_answers=none",
    *(f"export.{word}" for word in SMALL),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHATS)
def test_every_type_of_a_model_that_was_tuned_with_adapters(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's own export has the held-out rows of its data as the gate; the next a file, or none."""
    monkeypatch.chdir(tmp_path)
    chat_model(kind)
    own = ["export.target=gguf", "export.quantization=F16"]
    assert main([*SFT, "run=chat", *own, "--out", "runs/sft"]) == 0
    arm = Path("runs/sft/arms/sft")
    assert read_json(arm / "summary.json")["steps"] == 2
    record = read_json(arm / "export/gguf_f16/parity.json")
    assert record["passed"]
    assert record["held_out"] == "held-out rows of the alignment data"
    assert record["bits"][0]["tokens"] > 50
    plain = ["target=transformers", "quantization=F32", *SMALL]
    assert main(["export", "runs/sft", *plain]) == 0
    truth = transformers_logits(arm / "export/transformers")
    with torch.no_grad():
        started = load_hub(Path("chat"))(TOKENS)
    assert float((truth - started).abs().max()) > 1e-3  # the adapters are in the exported matrices
    check_exports("runs/sft", "sft", truth, TYPES)
    words = ["target=gguf", "quantization=Q8_0", "held_out=not_measured", *SMALL]
    assert main(["export", "runs/sft", *words, "--out", "unmeasured"]) == 0
    assert read_json(Path("unmeasured/gguf_q8_0/parity.json"))["measured"] is False


GGUF = ("export.target=gguf",)
ROPE = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 2.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
EARLY: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    "tokenizer": ("llama", {"tokenizer": "Whitespace"}, GGUF, "is not a byte-level BPE tokenizer"),
    "blocks": (
        "llama", {"intermediate_size": 96}, (*GGUF, "export.quantization=Q4_K"),
        "Q4_K stores blocks of 256 weights, which do not divide model.ffn.width = 96",
    ),
    "activation": ("llama", {"hidden_act": "gelu"}, GGUF, "has no architecture with the activation 'geglu'"),
    "rope": ("qwen3", {"rope_parameters": ROPE}, GGUF, "qwen3 ignores the factors of Llama3Rope"),
    "samples": (
        "llama", {"max_position_embeddings": 72}, (),
        "24 prompt tokens and 48 new ones are 73 tokens, more than the model's max_context = 72",
    ),
    "no text": (
        "llama", {}, (*GGUF, "export.quantization=F16", "export.held_out=not_measured", "export.samples=2"),
        "export.held_out = not_measured",
    ),
    "file": ("llama", {}, ("export.held_out=missing.txt",), "missing.txt is not a file (export.held_out)"),
    "type": ("llama", {}, (*GGUF, "export.quantization=F8"), "is not a type that gguf has: F32, F16, BF16"),
}  # fmt: skip


@pytest.mark.parametrize("start", ["chat", "runs/chat"])
@pytest.mark.parametrize("case", EARLY)
def test_an_export_that_cannot_succeed_is_refused_before_training(
    case: str,
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a Hugging Face folder, and of the run that it was imported to."""
    monkeypatch.chdir(tmp_path)
    kind, sizes, words, said = EARLY[case]
    sizes = dict(sizes)
    step = sizes.pop("tokenizer", "")
    chat_model(kind, **{"num_hidden_layers": 1, **sizes})
    if step:
        cut_by("chat", step)
    if start != "chat":
        assert main(["import", "chat"]) == 0
    capsys.readouterr()
    changes = [*SFT, f"run={start}", *words]
    assert main([*changes, "--out", "runs/sft"]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("stamm: ")]
    assert said in line
    assert not Path("runs/sft").exists()
    if case == "samples":
        assert main([*changes, "export.samples=0", "--out", "runs/sft", "--dry-run"]) == 0


def test_an_export_of_a_run_is_refused_before_its_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    imported_base("llama", "Whitespace", num_hidden_layers=1, intermediate_size=96)
    capsys.readouterr()

    def refused(*words: str) -> str:
        assert main(["export", "runs/base", "target=gguf", *words]) == 1
        found = capsys.readouterr().err.splitlines()
        (line,) = [text for text in found if text.startswith("stamm: ")]
        return line

    assert "model.ffn.width = 96" in refused("quantization=Q6_K", "held_out=not_measured")
    assert "is not a byte-level BPE tokenizer" in refused()
    assert not list(Path("runs/base").rglob("*.gguf"))


def test_a_study_names_a_held_out_file_that_is_missing_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo", "export.held_out=missing.txt", "--dry-run"]) == 2
    assert "missing.txt is not a file (export.held_out)" in capsys.readouterr().err
