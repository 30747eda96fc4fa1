"""Reward models: a reward is the head on the state at the stop token, whatever runs beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stamm.align.records import ScoreManifest
from stamm.align.rewards.config import (
    Length,
    ModelReward,
    ScoreConfig,
    Weighted,
    reward_sources,
)
from stamm.align.rewards.load_reward import load_reward
from stamm.align.rewards.reward import Answer, BatchReward
from stamm.align.rewards.score import score_file
from stamm.align.training.reward_model import answer_rewards, reward_at_stop
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import sha256_file
from stamm.base.schema import read_record
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from stamm.chat.render import ASSISTANT_END, EncodedChat
from stamm.models.loading import open_model
from stamm.models.reward_head import load_head, save_head
from stamm.models.serialization import load_decoder
from tests.unit.untrained_run import untrained_run

TEXTS = ("a", "fine, thanks", "never " * 9, "Bern", "a", "twelve " * 7)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reward_model")
    untrained_run(root)
    model = root / "model"
    generator = torch.Generator().manual_seed(1)
    width = load_decoder(model).config.d_model
    save_head(
        torch.randn(width, generator=generator), model, sha256_file(model / "model.safetensors")
    )
    return root


def answer(text: str) -> Answer:
    prompt = Conversation(turns=(UserTurn("How are you?"),), system="Be brief.")
    return Answer(prompt, AssistantTurn((Response(text),)), {})


def test_the_reward_is_the_head_on_the_state_at_the_stop_token(run: Path) -> None:
    model = open_model(run, chat=True)
    reward = load_reward(ModelReward(run=str(run)))
    weight = load_head(run / "model", model.decoder.config.d_model, model.sha256)
    for text in TEXTS:
        given = answer(text)
        whole = Conversation(turns=(*given.prompt.turns, given.completion), system="Be brief.")
        ids = model.chat.encode(whole).ids
        assert ids[-1] == model.tokenizer.control_id(ASSISTANT_END)
        with torch.no_grad():
            hidden = model.decoder.model(torch.tensor([ids]))[0, -1]
        assert reward(given) == pytest.approx(float(hidden.double() @ weight.double()), abs=1e-5)


def test_a_reward_does_not_depend_on_the_answers_beside_it(run: Path) -> None:
    reward = load_reward(ModelReward(run=str(run)))
    assert isinstance(reward, BatchReward)
    alone = [reward(answer(text)) for text in TEXTS]
    assert len(set(alone)) == len(set(TEXTS))
    for order in (range(6), (5, 2, 0, 1, 4, 3)):
        found = reward.many([answer(TEXTS[place]) for place in order])
        assert found == pytest.approx([alone[place] for place in order], abs=1e-5)
    model = open_model(run, chat=True)
    weight = load_head(run / "model", model.decoder.config.d_model, model.sha256)
    encoded = [
        EncodedChat(list(range(5, 5 + length)), [False] * (length - 2) + [True, False])
        for length in (12, 3, 40, 25, 3)
    ]
    wanted = answer_rewards(model.decoder, weight, encoded, batch_tokens=1)
    for batch_tokens in (60, 10_000):
        found = answer_rewards(model.decoder, weight, encoded, batch_tokens)
        assert torch.allclose(found, wanted, atol=1e-5, rtol=0)
    # The last token that the assistant wrote, not the last of the conversation.
    cut = answer_rewards(
        model.decoder,
        weight,
        [EncodedChat(each.ids[:-1], each.supervised[:-1]) for each in encoded],
    )
    assert torch.allclose(cut, wanted, atol=1e-5, rtol=0)


def test_rewards_have_gradients_in_head_and_decoder(run: Path) -> None:
    decoder = load_decoder(run / "model")
    weight = torch.ones(decoder.config.d_model, requires_grad=True)
    tokens, stop = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]]), torch.tensor([2, 3])
    reward_at_stop(decoder, weight, tokens, stop).sum().backward()  # type: ignore[no-untyped-call]
    embedding = decoder.model.embed_tokens.weight.grad
    assert embedding is not None
    assert weight.grad is not None
    assert bool(embedding[5].abs().sum() > 0)
    assert bool((embedding[0] == 0).all())  # padding
    with torch.no_grad():
        hidden = decoder.model(tokens)
    assert torch.allclose(weight.grad, hidden[0, 2] + hidden[1, 3], atol=1e-6)


def written_rewards(path: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in path.read_text().splitlines()]


def test_a_file_is_scored_and_the_manifest_names_the_model(run: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "?", "completion": text} for text in (*TEXTS, "long " * 2000)]
    data = tmp_path / "answers.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    config = ModelReward(run=str(run))
    manifest = score_file(data, out, ScoreConfig(reward=config))
    rewards = written_rewards(out)
    assert len(rewards) == len(TEXTS)
    assert rewards[0] == rewards[4]
    assert [row.row for row in manifest.bad_rows] == [7]
    assert "the model reads" in manifest.bad_rows[0].reason
    assert manifest == read_record(ScoreManifest, tmp_path / "out.jsonl.manifest.json")
    head = run / "model" / "head.safetensors"
    assert manifest.reads[str(head)].sha256 == sha256_file(head)
    both = Weighted(rewards=(config, Length(largest=1)), weights=(1.0, 10.0))
    assert [path.name for path in reward_sources(both).values()] == [
        "head.safetensors",
        "model.safetensors",
    ]
    score_file(data, tmp_path / "both.jsonl", ScoreConfig(reward=both))
    bonus = [b - a for a, b in zip(rewards, written_rewards(tmp_path / "both.jsonl"), strict=True)]
    assert bonus == pytest.approx([10, 0, 0, 0, 10, 0], abs=1e-6)


def test_what_is_not_a_reward_model_is_an_error(run: Path, tmp_path: Path) -> None:
    untrained_run(tmp_path)
    with pytest.raises(DataError, match=r"holds no reward models.*head\.safetensors"):
        load_reward(ModelReward(run=str(tmp_path)))
    with pytest.raises(RunError, match=r"absent is not a folder"):
        load_reward(ModelReward(run=str(tmp_path / "absent")))
    with pytest.raises(ConfigError, match="run"):
        ModelReward(run="")
    model = tmp_path / "model"
    width = load_decoder(model).config.d_model
    sha256 = sha256_file(model / "model.safetensors")
    cases = {
        f"has weights of shape .*not {width} finite": torch.ones(width + 1),
        f"not {width} finite": torch.full((width,), torch.nan),
    }
    for message, weight in cases.items():
        save_head(weight, model, sha256)
        with pytest.raises(DataError, match=message):
            load_reward(ModelReward(run=str(tmp_path)))
    save_head(torch.ones(width), model, "0" * 64)
    with pytest.raises(
        DataError, match=r"belongs to weights with SHA-256 000000000000, and model\.safetensors"
    ):
        load_reward(ModelReward(run=str(tmp_path)))
    save_file({"other": torch.ones(width)}, model / "head.safetensors")
    with pytest.raises(DataError, match="cannot be read"):
        load_reward(ModelReward(run=str(tmp_path)))
