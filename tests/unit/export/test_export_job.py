"""An export either leaves a folder that plain transformers loads and that was compared, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, ExportError, RunError
from stamm.base.files import read_json, sha256_file
from stamm.export import job
from stamm.export import transformers_target as written
from stamm.export.config import ExportConfig
from stamm.models.config import DecoderConfig, GatedFFN, LowRank
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hub import hub_state
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.tokenizer.special_tokens import BEGIN_ID, PII_MARKERS
from stamm.tokenizer.tokenizer import Tokenizer

CONFIG = ExportConfig(parity_rows=2, parity_tokens=40, prompt_tokens=6, sample_tokens=8, threads=1)
FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "parity.json",
    "samples.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


def run(inputs: dict[str, Path], folder: Path, config: ExportConfig = CONFIG) -> Path:
    job.run(config, Workspace(folder=folder, inputs=inputs))
    return folder / "transformers"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_plain_transformers_loads_the_folder(inputs: dict[str, Path], tmp_path: Path) -> None:
    folder = run(inputs, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["transformers"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "ApertusForCausalLM"
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    own = Tokenizer.load(inputs["tokenizer"])
    text = f"The river </s> <s> is wide, {PII_MARKERS['email']} 2024."
    batch = tokenizer(text, return_tensors="pt")
    assert batch["input_ids"][0].tolist() == [BEGIN_ID, *own.encode(text)]
    decoder = load_decoder(inputs["model"])
    with torch.no_grad():
        theirs = model(**batch).logits
        torch.testing.assert_close(decoder(batch["input_ids"]), theirs, rtol=1e-5, atol=1e-5)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<s>",
        "</s>",
        "<pad>",
    )
    assert model.generate(**batch, max_new_tokens=3).shape[1] <= batch["input_ids"].shape[1] + 3


def test_what_is_left_beside_the_weights(inputs: dict[str, Path], tmp_path: Path) -> None:
    folder = run(inputs, tmp_path)
    report = read_json(folder / "parity.json")
    assert report["passed"] is True
    texts = ["random tokens", "held-out text"]
    comparisons = report["comparisons"]
    assert [one["text"] for one in comparisons[:2]] == texts
    assert [one["text"] for one in comparisons[2:]] == [text + written.SAME_ORDER for text in texts]
    assert max(one["max_relative"] for one in comparisons) < 1e-5
    # What is left then: transformers rounds the angles of rotation to float32 on the way.
    assert max(one["max_absolute"] for one in comparisons[2:]) < 1e-5
    samples = read_json(folder / "samples.json")["samples"]
    assert {sample["language"] for sample in samples} == {"eng_Latn", "deu_Latn"}
    own = Tokenizer.load(inputs["tokenizer"])
    for sample in samples:
        assert 0 < len(own.encode(sample["prompt"])) <= 6
        assert "<s>" not in sample["prompt"]
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = run(inputs, tmp_path)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == first


def test_an_export_of_other_weights_is_kept_beside(inputs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "export"
    before = contents(run(inputs, out))
    sha256 = sha256_file(inputs["model"] / "model.safetensors")
    assert read_json(out / "transformers" / "parity.json")["model_sha256"] == sha256
    assert sha256 in (out / "transformers" / "README.md").read_text()
    decoder = build_decoder(load_decoder(inputs["model"]).config, seed=9)
    save_decoder(decoder, tmp_path / "other")
    other = {**inputs, "model": tmp_path / "other"}
    for _ in range(2):
        run(other, out)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "export",
            f"export-{sha256[:8]}",
            "other",
        ]
        assert [path.name for path in out.iterdir()] == ["transformers"]
    assert contents(tmp_path / f"export-{sha256[:8]}" / "transformers") == before


def test_without_a_packed_corpus(inputs: dict[str, Path], tmp_path: Path) -> None:
    alone = {name: inputs[name] for name in ("model", "tokenizer")}
    with pytest.raises(
        ConfigError, match=r"prompt_tokens = 6 is not read: there is no held-out text"
    ):
        run(alone, tmp_path)
    folder = run(alone, tmp_path, ExportConfig(parity_rows=2, parity_tokens=40, threads=1))
    comparisons = read_json(folder / "parity.json")["comparisons"]
    assert {one["text"].partition(",")[0] for one in comparisons} == {"random tokens"}
    assert read_json(folder / "samples.json")["samples"] == []
    assert "training data of this model are not known" in (folder / "README.md").read_text()


def softplus_twice(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {
        name: F.softplus(tensor) if name.endswith(("alpha_p", "alpha_n")) else tensor
        for name, tensor in hub_state(decoder).items()
    }


def one_weight_off(decoder: Decoder) -> dict[str, torch.Tensor]:
    state = {name: tensor.clone() for name, tensor in hub_state(decoder).items()}
    state["model.layers.1.mlp.down_proj.weight"][3, 5] += 0.5
    return state


def one_norm_off(decoder: Decoder) -> dict[str, torch.Tensor]:
    state = hub_state(decoder)
    layer = "model.layers.0.self_attn"
    state[f"{layer}.q_norm.weight"] = state[f"{layer}.q_norm.weight"] * 1.01
    return state


@pytest.mark.parametrize("tampered", [softplus_twice, one_weight_off, one_norm_off])
def test_a_wrong_export_fails_and_leaves_the_earlier_one(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tampered: Any
) -> None:
    before = contents(run(inputs, tmp_path))
    monkeypatch.setattr(written, "hub_state", tampered)
    with pytest.raises(ExportError, match=r"does not agree with the original on random tokens"):
        run(inputs, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["transformers"]
    assert contents(tmp_path / "transformers") == before


def test_a_folder_that_is_no_export_is_left_alone(inputs: dict[str, Path], tmp_path: Path) -> None:
    clone = tmp_path / "transformers"
    clone.mkdir()
    (clone / "setup.py").write_text("years of work", encoding="utf-8")
    with pytest.raises(RunError, match=r"transformers is not an export: .*another .* --out"):
        run(inputs, tmp_path)
    assert contents(clone) == {"setup.py": b"years of work"}
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "transformers").symlink_to(run(inputs, tmp_path / "other"))
    with pytest.raises(RunError, match="is not an export"):
        run(inputs, linked)


def test_settings_that_fail_leave_the_earlier_export(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    before = contents(run(inputs, tmp_path))
    with pytest.raises(ExportError):
        run(
            inputs,
            tmp_path,
            ExportConfig(parity_rows=2, parity_tokens=40, tolerance=1e-12, threads=1),
        )
    with pytest.raises(ConfigError):
        run(inputs, tmp_path, ExportConfig(prompt_tokens=100, sample_tokens=60))
    assert contents(tmp_path / "transformers") == before


@pytest.mark.slow
def test_the_gate_widens_with_the_models_own_error(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = load_decoder(inputs["model"])
    assert 1e-8 < job.float64_error(ExportConfig(parity_tokens=40), decoder, []) < 3e-6
    first = read_json(run(inputs, tmp_path) / "parity.json")
    apart = max(one["max_relative"] for one in first["comparisons"])
    strict = ExportConfig(parity_rows=2, parity_tokens=40, tolerance=apart / 2, threads=1)
    monkeypatch.setattr(job, "float64_error", lambda *_: apart / 3)
    report = read_json(run(inputs, tmp_path, strict) / "parity.json")
    assert report["tolerance"] == pytest.approx(apart * 4 / 3)
    monkeypatch.setattr(job, "float64_error", lambda *_: apart / 9)
    with pytest.raises(ExportError, match="logits differ by"):
        run(inputs, tmp_path, strict)


def test_a_wrong_tokenizer_fails_and_leaves_nothing_at_first(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = {**written.tokenizer_config(64), "split_special_tokens": False}
    monkeypatch.setattr(written, "tokenizer_config", lambda limit: faulty)
    with pytest.raises(ExportError, match=r"tokenizer does not agree .*'</s> <s> <pad>'"):
        run(inputs, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_no_class_holds_is_refused_first(inputs: dict[str, Path], tmp_path: Path) -> None:
    config = DecoderConfig(
        vocab_size=352, d_model=32, num_layers=1, ffn=GatedFFN(width=16), qkv_bias=True
    )
    save_decoder(build_decoder(config, seed=1), tmp_path / "model")
    out = tmp_path / "export"
    out.mkdir()
    with pytest.raises(ExportError, match="biases of queries, keys and values only in Qwen2"):
        run({**inputs, "model": tmp_path / "model"}, out)
    assert list(out.iterdir()) == []


def test_samples_must_fit_the_context(inputs: dict[str, Path], tmp_path: Path) -> None:
    long = ExportConfig(prompt_tokens=100, sample_tokens=60)
    with pytest.raises(ConfigError, match=r"are 161 tokens.*max_context = 160.*export\.samples=0"):
        run(inputs, tmp_path, long)


def test_configuration_refuses_and_survives_json() -> None:
    assert from_plain(ExportConfig, to_plain(CONFIG)) == CONFIG
    with pytest.raises(
        ConfigError, match=r"tolerance = 0\.0 .*licence = 'a: \[b\]' is not an SPDX"
    ):
        ExportConfig(tolerance=0.0, licence="a: [b]")
    assert ExportConfig(licence="CC-BY-4.0").licence == "CC-BY-4.0"


def test_structured_matrices_are_written_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    stored = load_decoder(inputs["model"])
    ffn = replace(stored.config.ffn, linear=LowRank(rank=8))
    decoder = build_decoder(replace(stored.config, ffn=ffn), seed=3)
    save_decoder(decoder, tmp_path / "structured")
    folder = run({**inputs, "model": tmp_path / "structured"}, tmp_path / "out")
    assert read_json(folder / "parity.json")["passed"] is True
    names = set(load_file(folder / "model.safetensors"))
    assert "model.layers.1.mlp.up_proj.weight" in names
    assert not any("first" in name or "second" in name for name in names)
