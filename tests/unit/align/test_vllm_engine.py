"""The engine that calls vLLM, with a module in its place that has the same call signatures."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch

from stamm.align.rewards.config import Length
from stamm.align.sampling import sample_job
from stamm.align.sampling.config import EngineSampling
from stamm.align.sampling.vllm_engine import VllmEngine
from stamm.align.steps import StartModel
from stamm.base.errors import ConfigError
from stamm.models.config import PlainFFN
from stamm.models.decoder import build_decoder
from stamm.models.hub_folder import load_hub
from stamm.models.sampling_config import SamplingConfig
from stamm.models.serialization import load_decoder, save_decoder
from stamm.recipes.align import PreferenceRecipe, qrpo
from tests.unit.align.finetuned import MODEL, start_model
from tests.unit.align.test_import_job import llama_folder
from tests.unit.align.test_sample_job import ROWS, config, lines, workspace


@dataclass(kw_only=True)
class SamplingParams:
    """The fields of vllm.SamplingParams that are used (vllm/sampling_params.py)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    detokenize: bool = True


class LLM:
    """Answers every prompt with tokens 7, 8 and its first stop token (vllm/entrypoints/llm.py)."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        **engine_arguments: Any,
    ) -> None:
        self.made.append({"model": model, "tokenizer": tokenizer, **engine_arguments})
        self.asked: list[SamplingParams] = []

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Any]:
        assert sampling_params is not None and len(prompts) == len(sampling_params)
        self.asked += sampling_params
        answers = []
        for prompt, one in zip(prompts, sampling_params, strict=True):
            assert prompt["prompt_token_ids"] and one.stop_token_ids and one.max_tokens
            tokens = [7, 8, one.stop_token_ids[0]][: one.max_tokens]
            known = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
            reason = "stop" if len(tokens) == 3 else "length"
            output = SimpleNamespace(token_ids=tokens, logprobs=known, finish_reason=reason)
            answers.append(SimpleNamespace(outputs=[output]))
        return answers


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    LLM.made.clear()


@pytest.mark.usefixtures("vllm")
def test_requests_have_seeds_of_their_keys_and_room_in_the_context() -> None:
    engine = VllmEngine(Path("model"), Path("tokenizer"), 10)
    settings = SamplingConfig(temperature=0.5, top_k=3, max_new_tokens=6)
    found = engine.sample([[1, 2], [1, 2], [1] * 8], settings, frozenset({5, 3}), [4, 4, 5])
    assert [each.tokens for each in found] == [[7, 8, 3], [7, 8, 3], [7, 8]]
    assert [each.stopped for each in found] == [True, True, False]
    assert [each.log_prob for each in found] == [-1.5, -1.5, -1.0]
    assert all(each.sampled_log_prob is None for each in found)
    asked = engine._model.asked
    assert [one.max_tokens for one in asked] == [6, 6, 2]
    assert asked[0].seed == asked[1].seed != asked[2].seed
    assert all(0 <= one.seed < 2**63 for one in asked)
    assert (asked[0].temperature, asked[0].top_k, asked[0].stop_token_ids) == (0.5, 3, [3, 5])
    assert LLM.made[0]["logprobs_mode"] == "raw_logprobs" and LLM.made[0]["max_model_len"] == 10


@pytest.mark.usefixtures("vllm")
def test_a_job_samples_a_hugging_face_folder(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    place = workspace(tmp_path, model=llama_folder(folder))
    sample_job.run(config(tmp_path, ROWS, engine="vllm"), place)
    rows = lines(place.folder / "completions.jsonl")
    assert len(rows) == 14 and all(row["stopped"] and row["num_tokens"] == 3 for row in rows)
    assert all(row["log_prob"] == row["sampled_log_prob"] == -1.5 for row in rows)
    assert len(LLM.made) == 1
    assert json.loads((place.folder / "manifests" / "00000.json").read_text())["kept"] == 3


@pytest.mark.usefixtures("vllm")
def test_a_stored_decoder_is_written_in_the_layout_of_transformers(tmp_path: Path) -> None:
    """Apertus' layout, once for each model; a run that samples again with other weights writes it again."""
    place = workspace(tmp_path)
    sample_job.run(config(tmp_path, ROWS, engine="vllm"), place)
    assert len(lines(place.folder / "completions.jsonl")) == 14
    hub = place.folder / "hub"
    assert LLM.made == [
        {
            "model": str(hub),
            "tokenizer": str(hub),
            "max_model_len": MODEL.max_context,
            "logprobs_mode": "raw_logprobs",
        }
    ]
    assert json.loads((hub / "config.json").read_text())["architectures"] == ["ApertusForCausalLM"]
    tokens = torch.arange(1, 9)[None]
    assert torch.equal(load_hub(hub)(tokens), load_decoder(tmp_path / "model")(tokens))
    before = (hub / "config.json").stat().st_mtime_ns
    sample_job.run(config(tmp_path, ROWS, engine="vllm"), place)
    assert (hub / "config.json").stat().st_mtime_ns == before
    start_model(tmp_path / "model", seed=6)
    sample_job.run(config(tmp_path, ROWS, engine="vllm"), place)
    assert torch.equal(load_hub(hub)(tokens), load_decoder(tmp_path / "model")(tokens))


@pytest.mark.usefixtures("vllm")
def test_a_model_that_vllm_does_not_have_is_refused(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    other = replace(MODEL, ffn=PlainFFN(width=48, activation="softplus"))
    save_decoder(build_decoder(other, 5), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"engine = vllm cannot run .*softplus"):
        sample_job.run(config(tmp_path, ROWS, engine="vllm"), place)
    assert not (place.folder / "hub").exists()


@pytest.mark.parametrize("setting", [{"slots": 4}, {"device": "cpu"}])
def test_settings_of_the_other_engine_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not read with engine=vllm"):
        EngineSampling(engine="vllm", **setting)


def test_rounds_name_the_engine(tmp_path: Path) -> None:
    """`sampling.engine=vllm` reaches every step that samples."""
    prompts = "package:align_prompts.jsonl.zst"
    recipe = PreferenceRecipe(
        train=qrpo().train,
        run="run",
        prompts=prompts,
        test_prompts=prompts,
        reward=Length(),
        rounds=2,
        sampling=EngineSampling(engine="vllm"),
    )
    start = StartModel(name="one", model="model", tokenizer="tokenizer", max_context=96)
    with patch("stamm.recipes.align.start_model", return_value=start):
        steps = recipe.steps(tmp_path)
    engines = [step.config.engine for step in steps if step.job == "sample"]
    assert engines == ["vllm"] * 4
