"""The answers job: its numbers equal independent computations on answers of two tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from stamm.align.records import AlignmentFile
from stamm.align.results.config import AnswersConfig
from stamm.align.results.evaluate_job import run
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import read_record
from stamm.chat.conversation import read_conversation
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.tekken import train_tokenizer_on
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.hf_chat_format import load_chat_format
from stamm.models.serialization import save_decoder
from stamm.runs.job import Workspace

WORDS = ["river", "road", "long", "note", "trees", "wide", "snow", "night", "short", "grow"]
PROMPTS = [f"The {WORDS[i % 10]} {WORDS[(3 * i + 1) % 10]}?" for i in range(8)]


CONFIG = DecoderConfig(
    vocab_size=335, d_model=32, num_layers=1, ffn=PlainFFN(width=48), max_context=160, init_std=0.2
)


def completion(place: int, sample: int, words: int, stopped: bool = True) -> dict[str, Any]:
    random = np.random.default_rng([place, sample, words])
    text = " ".join(random.choice(WORDS, size=words))
    return {
        "id": f"p{place}",
        "prompt": [{"role": "user", "content": PROMPTS[place]}],
        "completion": [{"role": "assistant", "content": text}],
        "tools": None,
        "deliberation": False,
        "sample": sample,
        "num_tokens": 0,
        "stopped": stopped,
        "reward": float(random.normal() + words),
        "gold": float(random.normal()),
    }


def ids_of(row: dict[str, Any], tokenizer: Path) -> tuple[list[int], int]:
    """Ids of prompt and answer, and the number of the prompt's."""
    chat = load_chat_format(tokenizer)
    prompt = chat.encode(read_conversation(row["prompt"]), prompt=True).ids
    ids = chat.encode(read_conversation(row["prompt"] + row["completion"])).ids
    return list(ids if row["stopped"] else ids[:-1]), len(prompt)


def write_completions(path: Path, rows: list[dict[str, Any]], tokenizer: Path) -> list[Any]:
    for row in rows:
        ids, start = ids_of(row, tokenizer)
        row["num_tokens"] = len(ids) - start
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def log_prob(decoder: Decoder, ids: list[int], start: int) -> float:
    with torch.no_grad():
        logits = decoder(torch.tensor([ids[:-1]]))[0].double()
    found = F.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return float(found[start - 1 :].sum())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Inputs of the job with two seeds, and the rows behind them."""
    root = tmp_path_factory.mktemp("answers")
    tokenizer = root / "tokenizer"
    tokenizer.mkdir()
    trained = train_tokenizer_on(TokenizerConfig(vocab_size=335), PROMPTS)
    (tokenizer / "tokenizer.json").write_text(trained, encoding="utf-8")
    decoder = build_decoder(CONFIG, seed=2)
    save_decoder(decoder, root / "model")
    rows = {
        "start": [completion(p, s, 3 + s % 3) for p in range(8) for s in range(6)],
        "aligned.1": [completion(p, 10 + s, 5 + s) for p in range(8) for s in range(2)],
        "aligned.2": [completion(p, 20 + s, 4, stopped=p > 1) for p in range(8) for s in range(2)],
    }
    inputs = {"reference": root / "model", "tokenizer": tokenizer}
    decoders = {"reference": decoder}
    for name, lines in rows.items():
        inputs[name] = root / f"{name}.jsonl"
        write_completions(inputs[name], lines, tokenizer)
        gold = name.replace("aligned", "gold").replace("start", "start_gold")
        inputs[gold] = root / f"{gold}.jsonl"
        scored = [{**row, "reward": row["gold"]} for row in lines]
        write_completions(inputs[gold], scored, tokenizer)
    for seed in (1, 2):
        decoders[f"model.{seed}"] = build_decoder(CONFIG, seed=seed + 50)
        inputs[f"model.{seed}"] = root / f"model-{seed}"
        save_decoder(decoders[f"model.{seed}"], inputs[f"model.{seed}"])
    return {"inputs": inputs, "rows": rows, "decoders": decoders, "root": root}


@pytest.fixture(scope="module")
def result(made: dict[str, Any]) -> AlignmentFile:
    folder = made["root"] / "out"
    folder.mkdir()
    config = AnswersConfig(beta=0.3, draws=300, examples=5)
    run(config, Workspace(folder=folder, inputs=made["inputs"]))
    return read_record(AlignmentFile, folder / "alignment.json")


def one_seed(made: dict[str, Any], **more: Path) -> dict[str, Path]:
    inputs = made["inputs"]
    return {
        "start": inputs["start"], "aligned": inputs["aligned.1"], "model": inputs["model.1"],
        "reference": inputs["reference"], "tokenizer": inputs["tokenizer"], **more,
    }  # fmt: skip


def test_a_missing_input_is_named(made: dict[str, Any], tmp_path: Path) -> None:
    inputs = one_seed(made)
    del inputs["model"]
    with pytest.raises(ConfigError, match="no input model"):
        run(AnswersConfig(), Workspace(folder=tmp_path, inputs=inputs))


def by_prompt(rows: list[dict[str, Any]], column: str) -> NDArray[np.float64]:
    return np.array([[r[column] for r in rows if r["id"] == f"p{p}"] for p in range(8)])


@pytest.mark.parametrize(("place", "column"), [(0, "reward"), (1, "gold")])
def test_rewards_quantiles_and_wins(
    made: dict[str, Any], result: AlignmentFile, place: int, column: str
) -> None:
    start = by_prompt(made["rows"]["start"], column)
    after = [by_prompt(made["rows"][f"aligned.{seed}"], column) for seed in (1, 2)]
    before, references = start[:, :3], start[:, 3:]
    found = result.rewards[place]
    assert found.column == column
    assert found.reward.before.mean == pytest.approx(before.mean())
    assert found.reward.after.mean == pytest.approx(np.mean(after))
    assert found.reward.difference.mean == pytest.approx(np.mean(after) - before.mean())
    rank = [(references[:, None] < one[..., None]).mean() for one in after]
    assert found.quantile.after.mean == pytest.approx(np.mean(rank))
    wins = [(one[..., None] > before[:, None]).mean() for one in after]
    assert found.win_rate.mean == pytest.approx(np.mean(wins))
    assert found.win_rate.low is not None and found.win_rate.low < np.mean(wins)


def test_kl_is_the_mean_log_ratio_under_both_decoders(
    made: dict[str, Any], result: AlignmentFile
) -> None:
    first, third, tokens = [], [], []
    for seed in (1, 2):
        ratios = []
        for row in made["rows"][f"aligned.{seed}"]:
            ids, start = ids_of(row, made["inputs"]["tokenizer"])
            ratios.append(
                log_prob(made["decoders"][f"model.{seed}"], ids, start)
                - log_prob(made["decoders"]["reference"], ids, start)
            )
        first.append(np.mean(ratios))
        third.append(np.mean(np.exp(-np.array(ratios)) - 1 + ratios))
        count = sum(row["num_tokens"] for row in made["rows"][f"aligned.{seed}"])
        tokens.append(np.sum(ratios) / count)
    assert result.kl.k1.mean == pytest.approx(np.mean(first), abs=1e-4)
    assert result.kl.k3 is not None
    assert result.kl.k3.mean == pytest.approx(np.mean(third), rel=1e-4)
    assert result.kl.per_token.mean == pytest.approx(np.mean(tokens), abs=1e-5)
    assert result.kl.recoded == 0.0


def test_lengths_stops_and_what_was_compared(made: dict[str, Any], result: AlignmentFile) -> None:
    rows = made["rows"]
    lengths = [np.mean([r["num_tokens"] for r in rows[f"aligned.{seed}"]]) for seed in (1, 2)]
    assert result.tokens.after.mean == pytest.approx(np.mean(lengths))
    assert result.stopped.before.mean == 1.0
    assert result.stopped.after.mean == pytest.approx((1 + 6 / 8) / 2)
    assert (result.prompts, result.answers, result.references, result.aligned) == (8, 3, 3, 2)
    assert result.seeds == ("1", "2") and set(result.model_sha256) == {"1", "2"}
    assert result.optimum.target is not None and result.optimum.target.beta == 0.3
    assert len(result.examples) == 5
    assert result.examples[0].prompt in PROMPTS
    assert result.bits_per_byte is None and result.memorization == ()


def test_the_same_inputs_give_the_same_bytes(made: dict[str, Any], result: AlignmentFile) -> None:
    folder = made["root"] / "again"
    folder.mkdir()
    config = AnswersConfig(beta=0.3, draws=300, examples=5)
    run(config, Workspace(folder=folder, inputs=made["inputs"]))
    first = (made["root"] / "out" / "alignment.json").read_bytes()
    assert (folder / "alignment.json").read_bytes() == first


def write_evaluation(folder: Path, nats: list[float]) -> Path:
    folder.mkdir()
    rows = [
        {"document_id": f"d{i}", "tokens": 9, "bytes": 10 + i, "nats": value}
        for i, value in enumerate(nats)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "held_out_documents.jsonl").write_text(text)
    return folder


def write_audit(folder: Path, cost: float) -> Path:
    folder.mkdir()
    here = {"mean": cost, "low": cost - 0.1, "high": cost + 0.1}
    buckets = [
        {
            "repeats": repeats, "passages": 4, "rouge_l": here, "nll_nats": here,
            "longest_common_span_tokens": here, "exact_prefix_tokens": here,
            "minus_control": {"nll_nats": here} if repeats else None,
        }
        for repeats in (0, 8)
    ]  # fmt: skip
    value = {
        "schema": 1, "prefix_tokens": 5, "new_tokens": 5, "interval": "t", "buckets": buckets,
    }  # fmt: skip
    (folder / "memorization.json").write_text(json.dumps(value))
    return folder


def test_cost_in_bits_per_byte_and_memorization(made: dict[str, Any], tmp_path: Path) -> None:
    start, after = [5.0, 8.0, 9.0], [6.0, 8.0, 9.5]
    inputs = one_seed(
        made,
        start_evaluate=write_evaluation(tmp_path / "start_evaluate", start),
        evaluate=write_evaluation(tmp_path / "evaluate", after),
        start_audit=write_audit(tmp_path / "start_audit", -1.0),
        audit=write_audit(tmp_path / "audit", -0.5),
    )
    (tmp_path / "out").mkdir()
    run(AnswersConfig(draws=100), Workspace(folder=tmp_path / "out", inputs=inputs))
    found = read_record(AlignmentFile, tmp_path / "out" / "alignment.json")
    assert found.bits_per_byte is not None
    assert found.bits_per_byte.before.mean == pytest.approx(22 / np.log(2) / 33)
    assert found.bits_per_byte.difference.mean == pytest.approx(1.5 / np.log(2) / 33)
    assert [(m.repeats, m.before.mean, m.after.mean) for m in found.memorization] == [(8, -1, -0.5)]
    assert found.seeds == ("",)
    other = write_evaluation(tmp_path / "other", [1.0])
    with pytest.raises(DataError, match="other documents"):
        run(
            AnswersConfig(draws=100),
            Workspace(folder=tmp_path / "out", inputs={**inputs, "evaluate": other}),
        )


def test_an_answer_that_the_format_cannot_write_is_left_out_of_the_kl(
    made: dict[str, Any], tmp_path: Path
) -> None:
    rows = [dict(row) for row in made["rows"]["aligned.1"]]
    rows[0]["completion"] = [{"role": "assistant", "content": ""}]
    rows[1]["num_tokens"] += 1
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "out").mkdir()
    inputs = one_seed(made, aligned=path)
    run(AnswersConfig(draws=100), Workspace(folder=tmp_path / "out", inputs=inputs))
    found = read_record(AlignmentFile, tmp_path / "out" / "alignment.json")
    assert found.kl.recoded == pytest.approx(2 / 16)


def test_sampled_tokens_are_taken_before_the_text(made: dict[str, Any], tmp_path: Path) -> None:
    rows = [dict(row) for row in made["rows"]["aligned.1"]]
    tokens = [300, 301, 299, 300]
    for row in rows:
        row["completion"] = [{"role": "assistant", "content": ""}]
        row |= {"token_ids": tokens, "num_tokens": 4}
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "out").mkdir()
    inputs = one_seed(made, aligned=path)
    run(AnswersConfig(draws=100), Workspace(folder=tmp_path / "out", inputs=inputs))
    found = read_record(AlignmentFile, tmp_path / "out" / "alignment.json")
    ratios = []
    for row in rows:
        chat = load_chat_format(inputs["tokenizer"])
        prompt = list(chat.encode(read_conversation(row["prompt"]), prompt=True).ids)
        ratios.append(
            log_prob(made["decoders"]["model.1"], prompt + tokens, len(prompt))
            - log_prob(made["decoders"]["reference"], prompt + tokens, len(prompt))
        )
    assert found.kl.k1.mean == pytest.approx(np.mean(ratios), abs=1e-4)
    assert found.kl.recoded == 0.0


def test_a_configuration_is_read_back_as_it_was_written() -> None:
    config = AnswersConfig(gold_name="judge", beta=0.2, draws=300)
    assert from_plain(AnswersConfig, to_plain(config)) == config
    with pytest.raises(ConfigError, match="is the name of the reward"):
        AnswersConfig(gold_name="reward")
