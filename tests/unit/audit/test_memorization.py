"""The audit finds what a decoder was made to memorise, and nothing in what it never saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stamm.audit import job
from stamm.audit.config import AuditConfig
from stamm.audit.memorization import (
    Continuation,
    Passage,
    by_repeats,
    continuations,
    metrics,
    prompts,
)
from stamm.base.config import from_plain, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json, sha256_file, write_json
from stamm.models.serialization import load_decoder, save_decoder
from stamm.runs.job import Workspace
from stamm.tokenizer.special_tokens import BEGIN_ID
from stamm.tokenizer.tokenizer import Tokenizer
from tests.unit.taught_decoder import audited_folders

CONFIG = AuditConfig(prefix_tokens=6, new_tokens=12)
SEEN = (
    "It was the best of times, it was the worst of times.",
    "Call me Ishmael. Some years ago, never mind how long.",
)
UNSEEN = (
    "Happy families are all alike; every unhappy one is not.",
    "In my younger and more vulnerable years my father said.",
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A decoder trained on SEEN alone until it knows it by heart, and the list of passages."""
    root = tmp_path_factory.mktemp("audited")
    texts = (*SEEN, *UNSEEN)
    return audited_folders(root, probes(), texts=texts, by_heart=SEEN, d_model=32, steps=80)


def probes() -> dict[str, object]:
    listed = [(f"r8-{i}", 8, text) for i, text in enumerate(SEEN)]
    listed += [(f"r0-{i}", 0, text) for i, text in enumerate(UNSEEN)]
    return {
        "schema": 1,
        "probes": [
            {"probe_id": name, "repeat": repeat, "text": text} for name, repeat, text in listed
        ],
    }


def test_memorised_passages_stand_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    workspace = Workspace(folder=tmp_path, inputs=inputs)
    job.run(CONFIG, workspace)
    report = read_json(tmp_path / "memorization.json")
    control, seen = report["buckets"]
    assert (control["repeats"], seen["repeats"], control["passages"]) == (0, 8, 2)
    assert seen["rouge_l"]["mean"] == 1.0
    assert seen["exact_prefix_tokens"]["mean"] == 12
    assert control["rouge_l"]["mean"] < 0.5
    assert seen["nll_nats"]["mean"] < 0.5 < 3 < control["nll_nats"]["mean"]
    assert control["minus_control"] is None
    gap = seen["minus_control"]["nll_nats"]
    assert gap["low"] < gap["mean"] < gap["high"] < 0


def test_job_writes_passages_in_order_and_the_same_bytes_again(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    workspace = Workspace(folder=tmp_path, inputs=inputs)
    job.run(CONFIG, workspace)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == sorted(job.OUTPUTS)
    weights = sha256_file(inputs["model"] / "model.safetensors")
    assert read_json(tmp_path / "memorization.json")["model_sha256"] == weights
    job.run(CONFIG, workspace)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    lines = [json.loads(line) for line in first["continuations.jsonl"].splitlines()]
    assert [line["probe_id"] for line in lines] == ["r0-0", "r0-1", "r8-0", "r8-1"]
    known = lines[2]
    assert known["produced"] == known["truth"]
    assert SEEN[0].startswith(known["prefix"] + known["truth"])
    assert known["rouge_l"] == 1.0


def test_cost_of_the_truth_is_that_of_the_definition(inputs: dict[str, Path]) -> None:
    decoder, tokenizer = load_decoder(inputs["model"]), Tokenizer.load(inputs["tokenizer"])
    passage = Passage(probe_id="p", repeats=0, text=UNSEEN[0])
    (found,) = continuations(
        CONFIG, decoder, [BEGIN_ID], prompts(CONFIG, tokenizer.encode, [passage])
    )
    tokens = [BEGIN_ID, *tokenizer.encode(passage.text)]
    assert (found.prefix, found.truth) == (tokens[1:7], tokens[7:19])
    with torch.no_grad():
        logs = decoder(torch.tensor([tokens[:18]]))[0].double().log_softmax(-1)
    nats = [-float(logs[position - 1, tokens[position]]) for position in range(7, 19)]
    assert found.nll_nats == pytest.approx(sum(nats) / 12, rel=1e-5)
    shown = [-float(logs[position - 1, tokens[position]]) for position in range(1, 7)]
    assert found.total_nats == pytest.approx(sum(shown) + sum(nats), rel=1e-5)


def test_metrics_of_a_worked_example() -> None:
    given = Continuation(
        passage=Passage(probe_id="p", repeats=1, text=""),
        prefix=[9],
        truth=[1, 2, 3, 4],
        produced=[1, 2, 2, 4],
        nll_nats=1.5,
        total_nats=7.5,
    )
    assert metrics(given) == {
        "rouge_l": 0.75,
        "longest_common_span_tokens": 2,
        "longest_common_span_share": 0.5,
        "exact_prefix_tokens": 2,
        "type_token_ratio": 0.75,
        "true_type_token_ratio": 1.0,
        "nll_nats": 1.5,
    }
    (bucket,) = by_repeats([given])
    assert bucket["minus_control"] is None
    assert bucket["rouge_l"] == {"mean": 0.75, "low": None, "high": None}


def test_errors_say_what_to_set(inputs: dict[str, Path], tmp_path: Path) -> None:
    workspace = Workspace(folder=tmp_path, inputs=inputs)
    with pytest.raises(ConfigError, match=r"are 37 tokens.*max_context = 32.*audit\.new_tokens=25"):
        job.run(AuditConfig(prefix_tokens=6, new_tokens=30), workspace)
    with pytest.raises(ConfigError, match=r"Lower audit\.prefix_tokens"):
        job.run(AuditConfig(prefix_tokens=40, new_tokens=30), workspace)
    assert list(tmp_path.iterdir()) == []
    decoder = load_decoder(inputs["model"])
    decoder.lm_head.weight.data[7, 0] = torch.nan
    save_decoder(decoder, tmp_path / "model")
    diverged = Workspace(folder=tmp_path, inputs={**inputs, "model": tmp_path / "model"})
    with pytest.raises(DataError, match="contains NaN or infinity"):
        job.run(CONFIG, diverged)
    with pytest.raises(ConfigError, match="new_tokens = 0 must be at least 1"):
        AuditConfig(new_tokens=0)
    assert from_plain(AuditConfig, to_plain(CONFIG)) == CONFIG


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"schema": 1, "probes": []}, r"lists no planted passage.*corpus\.probes"),
        ({"schema": 9, "probes": []}, r"schema 9, this audit reads 1"),
        ({"schema": 1, "probes": [{"probe_id": "p"}]}, r"KeyError: 'repeat'.*corpus step"),
        ([], r"not a list of planted passages: TypeError"),
        (
            {"schema": 1, "probes": [{"probe_id": "p7", "repeat": 1, "text": "Short."}]},
            r"the longest passage, p7, has \d+ tokens, the audit needs 18",
        ),
    ],
)
def test_unusable_lists_of_passages(
    inputs: dict[str, Path], tmp_path: Path, plain: object, message: str
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "audit"
    corpus.mkdir()
    out.mkdir()
    (out / "memorization.json").write_text("left by an earlier attempt")
    write_json(corpus / "probes.json", plain)
    with pytest.raises(DataError, match=message):
        job.run(CONFIG, Workspace(folder=out, inputs={**inputs, "corpus": corpus}))
    assert [path.name for path in out.iterdir()] == ["memorization.json"]
    assert (out / "memorization.json").read_text() == "left by an earlier attempt"
