"""`stamm import`: a Hugging Face folder or a GGUF file becomes a run that the other verbs read."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import stamm
from stamm.base.files import read_json, write_json
from stamm.cli.main import main
from stamm.models.hub_folder import load_hub
from stamm.models.serialization import load_decoder
from tests.unit.align.test_import_job import llama_folder
from tests.unit.export.test_gguf_import import write
from tests.unit.untrained_run import untrained_run


def base_model(folder: Path) -> Path:
    """A Llama without a chat template, whose tokens are those of no chat format."""
    llama_folder(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    stored = json.loads((folder / "tokenizer_config.json").read_text())
    stored.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(stored))
    return folder


@pytest.mark.parametrize("kind", [llama_folder, base_model])
def test_a_folder_becomes_a_run(
    kind: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(kind)
    kind(tmp_path / "Some-Llama.1")
    assert main(["import", "Some-Llama.1", "--dry-run"]) == 0
    assert not (tmp_path / "runs").exists()
    assert main(["import", "Some-Llama.1"]) == 0
    run = tmp_path / "runs" / "Some-Llama-1"
    arm = run / "arms" / "Some-Llama-1"
    assert sorted(p.name for p in arm.iterdir()) == [
        "config.json", "import.json", "manifest.json", "model",
    ]  # fmt: skip
    named = read_json(arm / "import.json")
    assert named["folder"] == "Some-Llama.1"
    assert main(["import", "Some-Llama.1"]) == 1, "the run exists"
    assert main(["ls", "runs"]) == 0


@pytest.mark.parametrize("place", ["runs/model", "runs/model/arms/model"])
def test_the_report_of_an_imported_model_names_its_layers(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    width = read_json(base_model(tmp_path / "model") / "config.json")["intermediate_size"]
    assert main(["import", "model"]) == 0
    capsys.readouterr()
    assert main(["report", place]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{place}/report.html"]
    page = Path(place, "report.html").read_text()
    assert f"gated swiglu {width}" in page
    assert "How training went" not in page
    assert f"stamm export {place}" in page
    (Path("runs/model/arms/model/model/decoder.json")).unlink()
    assert main(["report", place, "--out", "again.html"]) == 1
    assert "decoder.json" in capsys.readouterr().err


def test_a_gguf_file_becomes_a_run_with_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = untrained_run(tmp_path)
    decoder = load_decoder(inputs["model"])
    write(tmp_path / "model.gguf", inputs, decoder=decoder)
    assert main(["import", "model.gguf"]) == 0
    arm = tmp_path / "runs" / "model" / "arms" / "model"
    assert read_json(arm / "import.json")["quantization"] == "23 F32"
    tokens = torch.arange(100)[None]
    with torch.no_grad():
        assert torch.equal(load_decoder(arm / "model")(tokens), decoder(tokens))
    (tmp_path / "short.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[:5000])
    assert main(["import", "short.gguf"]) == 1
    assert main(["import", "model.bin"]) == 1
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["model"]
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 2)[1][:12] for line in errors if line.startswith("stamm: ")] == [
        "short.gguf i", "model.bin is",
    ]  # fmt: skip


def test_unknown_keys_are_shown_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = llama_folder(tmp_path / "model")
    for name, added in (("config.json", {"spiral": 1}), ("tokenizer_config.json", {"sound": 2})):
        write_json(folder / name, {**read_json(folder / name), **added})
    write_json(folder / "generation_config.json", {"top_k": 20, "eos_token_id": 2})
    assert main(["import", "model"]) == 0
    errors = capsys.readouterr().err
    assert errors.count("Unknown keys in model, not used: sound (1), spiral (1).") == 1
    assert errors.count("generation_config.json is not used") == 1
    record = read_json(tmp_path / "runs" / "model" / "arms" / "model" / "import.json")
    assert record["unknown_keys"] == {"sound": 1, "spiral": 1}


def test_hostile_folders_end_at_once_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = read_json(llama_folder(tmp_path / "layers") / "config.json")
    write_json(tmp_path / "layers" / "config.json", {**config, "num_hidden_layers": 10**9})
    tokenizer = llama_folder(tmp_path / "letters") / "tokenizer.json"
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 8}
    normalizer = {"type": "Sequence", "normalizers": [step] * 10}
    write_json(tokenizer, {**read_json(tokenizer), "normalizer": normalizer})
    (tmp_path / "adapter").mkdir()
    write_json(tmp_path / "adapter" / "adapter_config.json", {"peft_type": "LORA"})
    begin = time.process_time()
    assert [main(["import", name]) for name in ("layers", "letters", "adapter")] == [1, 1, 1]
    assert time.process_time() - begin < 5
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stamm: ")]
    found = [
        "num_layers = 1000000000 must lie in [1, 10000]",
        "1.07e+09 times as long",
        "is an adapter",
    ]
    assert [part in line for part, line in zip(found, lines, strict=True)] == [True] * 3
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("sharded", [False, True])
def test_python_loads_a_folder_of_another_model(tmp_path: Path, sharded: bool) -> None:
    folder = llama_folder(tmp_path / "model", sharded=sharded)
    model, tokenizer = stamm.load(folder)
    tokens = torch.tensor([tokenizer.encode("Hello, mill!")])
    assert tokenizer.decode(tokens[0].tolist()) == "Hello, mill!"
    with torch.no_grad():
        assert torch.equal(model(tokens), load_hub(folder)(tokens))


def test_a_damaged_folder_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = llama_folder(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["import", "model", "--out", "runs/x"]) == 1
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_an_imported_model_is_evaluated_exported_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = llama_folder(tmp_path / "model") / "config.json"
    config.write_text(config.read_text().replace('embeddings": 96', 'embeddings": 512'))
    assert main(["import", "model"]) == 0
    assert main(["evaluate", "runs/model", "tasks=blimp"]) == 0
    assert main(["release", "runs/model", "--out", "out"]) == 0
    assert main(["verify", "out", "--all"]) == 0
    exported, source = (read_json(Path(name) / "config.json") for name in ("out", "model"))
    assert exported["architectures"] == source["architectures"]
    tokenizer = [Path(name, "tokenizer_config.json").read_bytes() for name in ("out", "model")]
    assert tokenizer[0] == tokenizer[1]
    form = Path("out/documents/model_documentation.md").read_text()
    assert "imported from model, weights" in form
    assert "Not known here: the licence of the model, the lang" in Path("out/README.md").read_text()
