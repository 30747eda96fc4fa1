"""A reward model exported as a sequence classifier: transformers gives its rewards, or it is refused."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from stamm.base.errors import ExportError
from stamm.base.files import read_json, write_json
from stamm.chat.conversation import read_conversation
from stamm.export import job
from stamm.export.config import ExportConfig
from stamm.models.config import GatedFFN
from stamm.models.decoder import build_decoder
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.reward_head import RewardHead, load_head, save_head
from stamm.models.serialization import checked_config, load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256, write_chat_record
from tests.unit.chat.imported_folders import CHATML, imported_folder

CONFIG = ExportConfig(parity_rows=3, parity_tokens=24)
CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def reward_inputs(
    inputs: dict[str, Path],
    folder: Path,
    *,
    gated: bool,
    bias: bool = False,
    format_name: str = "apertus",
) -> dict[str, Path]:
    model = folder / "model"
    if gated:
        config = checked_config(inputs["model"])
        config = dataclasses.replace(
            config, qk_norm=False, qkv_bias=bias, ffn=GatedFFN(width=48, activation="swiglu")
        )
        decoder = build_decoder(config, seed=3)
        for name, parameter in decoder.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        save_decoder(decoder, model)
    else:
        shutil.copytree(inputs["model"], model)
    width = checked_config(model).d_model
    generator = torch.Generator().manual_seed(1)
    save_head(torch.randn(width, generator=generator), model, weights_sha256(model))
    write_chat_record(model, format_name, load_chat_format(inputs["tokenizer"]).sha256)
    return {**inputs, "model": model}


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@torch.no_grad()
def test_transformers_gives_the_rewards(kind: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    given = reward_inputs(inputs, tmp_path, gated=True, bias=kind == "Qwen2")
    out = tmp_path / "export"
    out.mkdir()
    job.run(CONFIG, Workspace(folder=out, inputs=given))
    folder = out / "transformers"
    assert not (folder / "generation_config.json").exists()
    assert f"{kind}ForSequenceClassification" in (folder / "README.md").read_text()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.config.num_labels == 1
    ids = load_chat_format(given["tokenizer"]).encode(read_conversation(CHAT)).ids
    decoder = load_decoder(given["model"])
    head = RewardHead(decoder.config.d_model)
    sha256 = weights_sha256(given["model"])
    head.weight.data = load_head(given["model"], decoder.config.d_model, sha256)
    places = torch.full((len(ids),), -1)
    places[-1] = 0
    expected = head(decoder.model(torch.tensor([ids]))[0], places, 1)
    tokens = tokenizer.apply_chat_template(CHAT, return_dict=True, return_tensors="pt")
    assert tokens["input_ids"][0].tolist() == ids
    padded = tokenizer.pad({"input_ids": [ids, ids + ids[1:]]}, return_tensors="pt")
    for found in (model(**tokens).logits[0], model(**padded).logits[0]):
        assert found.double() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def imported_rewards(
    inputs: dict[str, Path], folder: Path, pad_token: str | None
) -> dict[str, Path]:
    """A reward model with an imported ChatML tokenizer."""
    tokenizer = imported_folder(folder / "tokenizer", CHATML)
    config = read_json(tokenizer / "tokenizer_config.json")
    write_json(tokenizer / "tokenizer_config.json", {**config, "pad_token": pad_token})
    return reward_inputs(
        {**inputs, "tokenizer": tokenizer}, folder, gated=True, format_name="chatml"
    )


@torch.no_grad()
def test_the_example_of_the_card_gives_the_reward_at_the_end_of_the_answer(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = imported_rewards(inputs, tmp_path, pad_token=None)
    out = tmp_path / "export"
    out.mkdir()
    job.run(CONFIG, Workspace(folder=out, inputs=given))
    folder = out / "transformers"
    texts = [each["text"] for each in read_json(folder / "parity.json")["comparisons"]]
    assert texts == ["rewards of random tokens", "reward of a chat"]
    chat = load_chat_format(given["tokenizer"])
    asked = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]
    encoded = chat.encode(read_conversation(asked))
    ids = encoded.ids[: len(encoded.ids) - encoded.supervised[::-1].index(True)]
    assert ids[-1] in chat.stop_ids and len(ids) < len(encoded.ids)
    decoder = load_decoder(given["model"])
    head_D = load_head(given["model"], decoder.config.d_model, weights_sha256(given["model"]))
    expected = float(decoder.model(torch.tensor([ids]))[0, -1] @ head_D)
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(folder)
    shown: list[float] = []
    exec(code, {"print": lambda reward: shown.append(float(reward))})
    assert shown == pytest.approx([expected], rel=1e-4, abs=1e-5)


def test_padding_that_ends_answers_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    given = imported_rewards(inputs, tmp_path, pad_token="<|im_end|>")
    out = tmp_path / "export"
    out.mkdir()
    with pytest.raises(ExportError, match=r"padding token '<\|im_end\|>' also ends an answer"):
        job.run(CONFIG, Workspace(folder=out, inputs=given))
    assert not list(out.iterdir())


def test_where_no_class_holds_a_head_it_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    given = reward_inputs(inputs, tmp_path, gated=False)
    out = tmp_path / "export"
    out.mkdir()
    with pytest.raises(
        ExportError, match="is a reward model, and transformers has no sequence cla"
    ):
        job.run(CONFIG, Workspace(folder=out, inputs=given))
    assert not list(out.iterdir())
    gguf = dataclasses.replace(CONFIG, target="gguf")
    with pytest.raises(ExportError, match="a reward model, and the target gguf has no place"):
        job.run(gguf, Workspace(folder=out, inputs=given))
