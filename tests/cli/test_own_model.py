"""A model of the user's own, as a Hugging Face folder: import, exports with their gates, DPO, release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import stamm
from stamm.base.errors import RunError
from stamm.base.files import read_json, sha256_file
from stamm.cli.main import main
from tests.unit.chat.imported_folders import TEMPLATES, imported_folder
from tests.unit.models.hub_models import base_tokenizer, hub_model

ARM = Path("runs/base/arms/base")


def error(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stamm: ")]
    assert len(lines) == 1
    return lines[0]


def test_a_base_model_is_exported_with_a_gate_or_the_mark_that_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base model of Llama 2's kind, in bfloat16: its tokenizer reads </s> in a text as the token."""
    monkeypatch.chdir(tmp_path)
    base_tokenizer(Path("base"))
    hub_model(Path("base"), "llama", torch.bfloat16)
    assert main(["import", "base"]) == 0
    with safe_open(ARM / "model" / "model.safetensors", framework="pt") as stored:
        kinds = {stored.get_slice(name).get_dtype() for name in stored.keys()}  # noqa: SIM118
    assert kinds == {"BF16"}
    (ours, tokenizer), (theirs, _) = stamm.load("runs/base"), stamm.load("base")
    tokens = torch.tensor([tokenizer.encode("Hello, mill!")])
    with torch.no_grad():
        assert torch.equal(ours(tokens), theirs(tokens))
    with pytest.raises(RunError, match="which has no arms"):
        stamm.load("base", "xielu")
    text = "The wind turns the mill. Hello! </s> <s> 12 + 30\n"
    Path("held.txt").write_text(text * 60)
    Path("held.jsonl").write_text(json.dumps({"text": text * 30, "language": "eng_Latn"}) + "\n")
    for changes in (["quantization=BF16", "held_out=held.txt"], ["held_out=held.jsonl"]):
        assert main(["export", "runs/base", *changes]) == 0
    rounded, whole = (
        read_json(ARM / "export" / name / "parity.json")
        for name in ("transformers_bf16", "transformers")
    )
    assert rounded["passed"]
    assert rounded["bits"][0]["tokens"] > 500
    assert [row["language"] for row in whole["tokens"]] == ["eng_Latn"]
    assert whole["tokens"][0]["differing"] == 0
    recorded = f"the file held.txt, SHA-256 {sha256_file(Path('held.txt'))}"
    assert rounded["held_out"] == recorded
    assert f"Held-out text: {recorded}." in (ARM / "export/transformers_bf16/README.md").read_text()
    capsys.readouterr()
    gguf = ["export", "runs/base", "target=gguf", "quantization=Q8_0"]
    assert main(gguf) == 2
    assert "Set held_out=FILE (text or JSONL), or held_out=not_measured" in error(capsys)
    assert main([*gguf, "held_out=missing.txt"]) == 1
    assert "missing.txt is not a file (export.held_out)" in error(capsys)
    assert main(["export", "runs/base", "held_out=not_measured"]) == 2
    assert "the gate of F32 is the difference of logits" in error(capsys)
    assert not (ARM / "export" / "gguf_q8_0").exists()
    assert main([*gguf, "held_out=not_measured"]) == 0
    record = read_json(ARM / "export" / "gguf_q8_0" / "parity.json")
    assert (record["measured"], record["passed"], record["bits"]) == (False, False, [])
    assert record["held_out"] == ""
    assert record["candidate"].endswith("Q8_0")
    assert "**Not measured:** bits per byte" in (ARM / "export/gguf_q8_0/README.md").read_text()


def test_a_release_names_the_export_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    base_tokenizer(Path("base"))
    hub_model(Path("base"), "llama")
    assert main(["import", "base"]) == 0
    assert main(["export", "runs/base", "target=gguf"]) == 0
    capsys.readouterr()
    assert main(["release", "runs/base", "--out", "out"]) == 0
    assert "no export to transformers" in capsys.readouterr().err
    assert main(["verify", "out", "--all"]) == 0
    assert "| gguf |" in Path("out/README.md").read_text()


@pytest.mark.slow
def test_a_chat_model_becomes_a_rounded_gguf_after_preference_optimization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2's kind, in bfloat16, with adapters; the gate is on the held-out rows of the pairs."""
    monkeypatch.chdir(tmp_path)
    imported_folder(Path("chat"), TEMPLATES["chatml"])
    hub_model(Path("chat"), "qwen2", torch.bfloat16, max_position_embeddings=512)
    pairs = [
        {
            "prompt": f"What does mill {name} do?",
            "chosen": f"The wind turns mill {name}, and mill {name} grinds flour.",
            "rejected": f"No {name}.",
        }
        for name in "abcdefghijklmnopqrstuvwx"  # no digits: Qwen2's own class takes them apart
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    changes = [
        "run=chat", "data=pairs.jsonl", "train.lora=Lora", "train.lora.rank=4", "train.epochs=1", "prepare.held_out=0.4",
        "export.target=gguf", "export.quantization=Q8_0", "export.bits_tolerance=0.02",
        "train.engine.threads=1",
    ]  # fmt: skip
    assert main(["run", "align.dpo", *changes, "--out", "runs/dpo"]) == 0
    record = read_json(Path("runs/dpo/arms/dpo/export/gguf_q8_0/parity.json"))
    assert record["passed"]
    assert record["measured"]
    assert record["bits"][0]["tokens"] > 100
    model, tokenizer = stamm.load("chat")
    with torch.no_grad():
        assert model(torch.tensor([tokenizer.encode("Hello")])).isfinite().all()
    assert main(["export", "runs/dpo", "target=transformers", "quantization=BF16"]) == 0
    exported = read_json(Path("runs/dpo/arms/dpo/export/transformers_bf16/config.json"))
    assert exported["architectures"] == ["Qwen2ForCausalLM"]
