"""Exact unlearning: the bits of a run from the beginning without the documents."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import read_json
from stamm.base.schema import write_record
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shuffle import WindowOrder
from stamm.engine.trainer import Trainer
from stamm.pretrain import job
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.pretrain.forget import job as forget_job
from stamm.pretrain.forget.config import ForgetConfig, ForgetPlanConfig, ForgetRule
from stamm.pretrain.forget.sequences import (
    RemainingSequences,
    TokenSpans,
    affected_positions,
    read_spans,
    replacement_positions,
)
from stamm.runs.job import Workspace
from stamm.runs.records import ManifestFile
from tests.unit.trained_run import (
    BATCH,
    CONTEXT,
    COPY,
    STEPS,
    Lines,
    config_of,
    corpus,
    same_run,
    trained_arm,
)

RULES: tuple[ForgetRule, ...] = ("replace", "drop")
NEAR = DedupConfig(bands=28, band_hashes=4, threshold=0.5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one arm."""
    root = tmp_path_factory.mktemp("trained") / "run"
    corpus(root)
    trained_arm(root)
    return root


def first_steps(run: Path) -> dict[str, int]:
    """The first step that reads each document, by a loop over every token of the run."""
    split = PackedSplit.open(run / "pack", "train")
    owner = {
        token: row["document_id"]
        for row in split.documents().to_pylist()
        for token in range(row["start"], row["stop"])
    }
    first: dict[str, int] = {}
    windows = WindowOrder(split.stages, CONTEXT, 28).windows(0, STEPS * BATCH).tolist()
    for number, start in enumerate(windows):
        for token in range(start, start + CONTEXT + 1):
            first.setdefault(owner[token], number // BATCH + 1)
    return first


def late_documents(run: Path) -> list[str]:
    """Documents that are read, but not in the first half."""
    return [name for name, step in sorted(first_steps(run).items()) if step > STEPS // 2]


def planned(run: Path, folder: Path, names: list[str], **settings: Any) -> list[str]:
    """The messages of planning to forget, in `folder`."""
    folder.mkdir(parents=True)
    requests = folder.parent / f"{folder.name}.txt"
    requests.write_text("\n".join(names) + "\n")
    rule = settings.pop("rule", "replace")
    base = config_of(run / "pack")
    training = ForgetConfig(
        rule=rule, **{f.name: getattr(base, f.name) for f in fields(PretrainConfig)}
    )
    progress = Lines()
    forget_job.run(
        ForgetPlanConfig(documents=(str(requests),), training=training, **settings),
        Workspace(
            folder=folder,
            inputs={
                "pack": run / "pack",
                "tokenizer": run / "tokenizer",
                "source": run / "arms" / "toy" / "config.json",
            },
            progress=progress,
        ),
    )
    return progress.lines


def forgotten(run: Path, plan: Path, folder: Path, rule: ForgetRule = "replace") -> list[str]:
    """Train without the documents in `folder`; the messages."""
    folder.mkdir(exist_ok=True)
    base = config_of(run / "pack")
    config = ForgetConfig(
        rule=rule, **{f.name: getattr(base, f.name) for f in fields(PretrainConfig)}
    )
    progress = Lines()
    inputs = {
        "pack": run / "pack",
        "forget": plan,
        "source": run / "arms" / "toy" / "config.json",
    }
    job.run(config, Workspace(folder=folder, inputs=inputs, progress=progress))
    return progress.lines


class Altered:
    """A packed corpus whose tokens of some documents are others."""

    def __init__(self, split: PackedSplit, spans: TokenSpans) -> None:
        self._split, self._spans = split, spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._split, name)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        tokens = self._split.read(start, stop)
        inside = self._spans.contain(start, stop)
        tokens[inside] = 3 + (tokens[inside] * 7 + 11) % 300
        return tokens


@pytest.mark.parametrize("rule", RULES)
def test_forgetting_has_the_bits_of_a_run_without_the_documents_and_of_none_of_their_text(
    rule: ForgetRule, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where the checkpoint is too late, or a token of the documents still has an effect."""
    names = late_documents(run)[:2]
    said = planned(run, tmp_path / "plan", names, rule=rule)
    first = min(first_steps(run)[name] for name in names)
    record = read_json(tmp_path / "plan" / "forget.json")
    assert (record["first_step"], record["documents"], record["read_before"]) == (first, 2, 0)
    assert record["checkpoint"] == (first - 1) // 2 * 2 > 0
    assert f"{STEPS - record['checkpoint']} steps, about" in said[1]
    resumed = forgotten(run, tmp_path / "plan", tmp_path / "branch", rule)
    assert f"Resuming after step {record['checkpoint']} of {STEPS}." in resumed

    planned(run, tmp_path / "whole", names, rule=rule, start="beginning")
    spans = read_spans(tmp_path / "whole")
    split = PackedSplit.open(run / "pack", "train", examined=True)
    monkeypatch.setattr(job, "open_stream", lambda *_: Altered(split, spans))
    begun = forgotten(run, tmp_path / "whole", tmp_path / "clean", rule)
    assert not any("Resuming" in line for line in begun)
    assert same_run(tmp_path / "branch", tmp_path / "clean")
    assert not same_run(tmp_path / "branch", run / "arms" / "toy")


def test_the_altered_documents_would_be_seen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: a run that reads the altered documents ends with other bits."""
    planned(run, tmp_path / "plan", late_documents(run)[:2])
    split = PackedSplit.open(run / "pack", "train", examined=True)
    spans = read_spans(tmp_path / "plan")
    monkeypatch.setattr(job, "open_stream", lambda *_: Altered(split, spans))
    (tmp_path / "altered").mkdir()
    job.run(
        config_of(run / "pack"),
        Workspace(folder=tmp_path / "altered", inputs={"pack": run / "pack"}),
    )
    assert not same_run(tmp_path / "altered", run / "arms" / "toy")


def test_killed_at_any_moment_it_ends_with_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = late_documents(run)[:1]
    planned(run, tmp_path / "plan", names)
    forgotten(run, tmp_path / "plan", tmp_path / "whole")
    copy, save = shutil.copytree, Trainer._save

    def cut(source: Path, target: Path) -> None:
        copy(source, target)
        next(target.glob("*.safetensors")).write_bytes(b"half")
        raise KeyboardInterrupt

    def killed(self: Trainer, step: int, metrics: Any) -> None:
        if step == STEPS:
            raise KeyboardInterrupt
        save(self, step, metrics)

    for where, name, kill in (
        (shutil, "copytree", cut),
        (Trainer, "_save", killed),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(where, name, kill)
            forgotten(run, tmp_path / "plan", tmp_path / "killed")
    forgotten(run, tmp_path / "plan", tmp_path / "killed")
    assert same_run(tmp_path / "killed", tmp_path / "whole")


def test_another_machine_is_refused_and_what_is_not_exact_is_named(
    run: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    path = moved / "arms" / "toy" / "manifest.json"
    manifest = read_json(path)
    manifest.pop("self_sha256")
    write_record(path, ManifestFile, manifest | {"cpu": "Another 9000"})
    names = late_documents(run)[:1]
    with pytest.raises(RunError, match=r"processor Another 9000 there.* here") as refused:
        planned(moved, tmp_path / "exact", names)
    assert "start=beginning" in str(refused.value.fix) and "start=approximate" in str(
        refused.value.fix
    )
    said = planned(moved, tmp_path / "approximate", names, start="approximate")
    assert any(line.startswith("Approximate, other bits: ") for line in said)
    assert read_json(tmp_path / "approximate" / "forget.json")["differences"]
    planned(moved, tmp_path / "beginning", names, start="beginning")
    assert read_json(tmp_path / "beginning" / "forget.json")["differences"] == []


def test_without_an_early_checkpoint_all_is_trained_again_or_the_approximate_mode_is_asked_for(
    run: Path, tmp_path: Path
) -> None:
    early = min(first_steps(run).items(), key=lambda item: (item[1], item[0]))
    assert early[1] == 1
    said = planned(run, tmp_path / "exact", [early[0]])
    assert "Training resumes from the beginning" in said[1]
    assert "start=approximate resumes from step 2" in said[-1]
    assert read_json(tmp_path / "exact" / "forget.json")["checkpoint"] == 0
    said = planned(run, tmp_path / "other", [early[0]], start="approximate")
    record = read_json(tmp_path / "other" / "forget.json")
    assert record["checkpoint"] == 2 and record["read_before"] >= 1
    assert said[-1].startswith(f"Approximate: {record['read_before']} of ")


def test_requests_that_name_nothing_or_nothing_that_was_read_end_before_training(
    run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no deletion request names a document"):
        planned(run, tmp_path / "unknown", ["https://host.example/none"])
    with pytest.raises(DataError, match="is not a deletion request"):
        planned(run, tmp_path / "hostile", ["<script>alert(1)</script>"])
    split = PackedSplit.open(run / "pack", "train").documents().to_pylist()
    unread = [row["url"] for row in split if row["document_id"] not in first_steps(run)]
    with pytest.raises(RunError, match=f"none of the {STEPS} training steps read any"):
        planned(run, tmp_path / "unread", unread[:1])
    with pytest.raises(ConfigError, match="no forgotten document has the 4000 tokens"):
        planned(run, tmp_path / "short", late_documents(run)[:1], passage_tokens=4000)


def test_near_duplicates_are_listed_as_requests_and_passages_written_with_controls(
    run: Path, tmp_path: Path
) -> None:
    """A copy with one more word; other documents of the same ten words are not like it."""
    said = planned(run, tmp_path / "plan", [COPY[1]], near=NEAR, passage_tokens=8, passages=3)
    assert any("1 documents are like a forgotten one and stay" in line for line in said)
    listed = (tmp_path / "plan" / "near_duplicates.txt").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == [COPY[0]]
    assert f"# like {COPY[1]}: https://host1.example/1" in listed
    lines = [json.loads(line) for line in (tmp_path / "plan" / "passages.jsonl").open()]
    split = {
        row["document_id"]: name
        for name in ("train", "held_out")
        for row in PackedSplit.open(run / "pack", name).documents().to_pylist()
    }
    assert [(line["probe_id"], line["repeats"]) for line in lines[:1]] == [(COPY[1], 1)]
    assert len(lines) == 4
    assert all(split[line["probe_id"]] == "held_out" and line["repeats"] == 0 for line in lines[1:])


def test_affected_and_replaced_sequences_are_those_of_a_loop_over_every_token() -> None:
    draw = random.Random(3)
    for _ in range(25):
        tokens, length = draw.randint(40, 300), draw.randint(2, 9)
        borders = sorted({0, tokens, *(draw.randrange(tokens) for _ in range(12))})
        documents = list(itertools.pairwise(borders))
        gone = draw.sample(documents, draw.randint(1, 3))
        order = WindowOrder([(0, tokens)], length, draw.randrange(99))
        total = draw.randint(1, 2 * order.count)
        spans = TokenSpans(*(np.array(list(column)) for column in zip(*gone, strict=True)))

        inside = {token for span in gone for token in range(*span)}
        begins = order.windows(0, 40 * order.count).tolist()
        touched = [not inside.isdisjoint(range(b, b + length + 1)) for b in begins]
        expected = [position for position in range(total) if touched[position]]
        assert affected_positions(order, spans, 0, total).tolist() == expected
        if all(touched):
            with pytest.raises(DataError, match="every training sequence"):
                replacement_positions(order, spans, total, 1)
            continue
        others = (position for position in range(total, len(touched)) if not touched[position])
        wanted = [next(others) for _ in expected]
        assert replacement_positions(order, spans, total, len(expected)).tolist() == wanted


def test_dropped_tokens_are_hidden_and_no_loss_depends_on_them(run: Path) -> None:
    split = PackedSplit.open(run / "pack", "train")
    gone = split.documents().to_pylist()[2::4]
    spans = TokenSpans(*(np.array([row[name] for row in gone]) for name in ("start", "stop")))
    given = split, CONTEXT, 28, config_of(run / "pack").goldfish
    usual = SequenceSampler(*given, "released").batch(0, 40)
    left = RemainingSequences(
        *given, "released", spans=spans, rule="drop", first=0, total=40
    ).batch(0, 40)
    starts = WindowOrder(split.stages, CONTEXT, 28).windows(0, 40).tolist()
    inside = [
        [any(row["start"] <= s + t < row["stop"] for row in gone) for t in range(CONTEXT + 1)]
        for s in starts
    ]
    hidden = np.array(inside)
    assert hidden.any(axis=1).sum() > 4
    both = hidden[:, 1:] | hidden[:, :-1]
    assert not left.keep_BT[both].any()
    assert left.keep_BT[~both].equal(usual.keep_BT[~both])
    assert set(left.tokens_BT[hidden[:, :-1]].tolist()) == {split.end_id}
    assert left.tokens_BT[~hidden[:, :-1]].equal(usual.tokens_BT[~hidden[:, :-1]])
    assert left.document_BT.equal(usual.document_BT)
