"""Forgetting documents through the command line, and replay of a release."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError
from stamm.base.schema import read_record
from stamm.corpus.packed_dataset import PackedSplit
from stamm.pretrain.forget.results import read_forgetting
from stamm.pretrain.trace import trace
from stamm.release.records import ReleaseFile
from stamm.tokenizer.tokenizer import Tokenizer
from tests.conftest import Stamm

BITS = ("model/model.safetensors", "metrics.jsonl", "checkpoints/step-00000030/state.json")


@pytest.mark.slow
def test_a_model_forgets_documents_and_its_page_and_card_show_it(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    """The commands of docs/accountability.md, on the smoke run."""
    documents = PackedSplit.open(smoke_run / "pack", "train").documents().to_pylist()
    urls = {row["url"] for row in documents if str(row["url"]).startswith("https://18f")}
    (tmp_path / "requests.txt").write_text("".join(f"{url}\n" for url in sorted(urls)[:3]))
    command = ("run", "pretrain.forget", f"run={smoke_run}", "arm=xielu", "documents=requests.txt")
    planned = stamm(*command, "--out", "exact", "--dry-run")
    assert planned.returncode == 0 and not (tmp_path / "exact").exists(), planned.stderr
    done = stamm(*command, "rule=drop", "--out", "exact")
    assert done.returncode == 0, done.stderr
    assert "of the training sequences, first in step" in done.stderr
    again = stamm(*command, "rule=drop", "--out", "exact")
    assert "nothing to do" in again.stdout
    quick = ("evaluate=none", "audit=none", "near=none")
    clean = stamm(*command, "rule=drop", "start=beginning", *quick, "--out", "clean")
    assert clean.returncode == 0, clean.stderr
    for name in BITS:
        one, other = (tmp_path / f / "arms/xielu-without" / name for f in ("exact", "clean"))
        assert one.read_bytes() == other.read_bytes(), name
    page = (tmp_path / "exact/report.html").read_text()
    assert "Forgotten documents" in page and "Exact: by construction" in page
    forgetting = read_forgetting(tmp_path / "exact", tmp_path / "exact/arms/xielu-without")
    assert forgetting is not None and forgetting.record.is_exact
    assert {"held-out text: loss nats", "passages never seen: nats per token"} <= {
        row[0] for row in forgetting.rows
    }
    assert all(before and after for _, before, after in forgetting.rows)
    _attribution(smoke_run / "arms" / "xielu", tmp_path, documents, sorted(urls)[:3])
    done = stamm("release", "exact/arms/xielu-without", "--out", "released")
    assert done.returncode == 0, done.stderr
    run, release = (
        trace(tmp_path / name, document=sorted(urls)[0]).arms[0] for name in ("exact", "released")
    )
    assert [d.forgotten for d in (*run.documents, *release.documents)] == ["drop"] * 2 * run.count
    for step in (1, 25, 30):
        both = [
            trace(tmp_path / name, step=step, limit=999).arms[0] for name in ("exact", "released")
        ]
        read = [
            [(d.document_id, [r.position for r in d.readings]) for d in arm.documents]
            for arm in both
        ]
        assert read[0] == read[1] and read[0]
    assert stamm("verify", "released", "--deep").returncode == 0


def _attribution(
    arm: Path, branches: Path, documents: list[dict[str, Any]], urls: list[str]
) -> None:
    """A passage of a forgotten document is found, and its change of loss is that of the two models."""
    split = PackedSplit.open(arm.parent.parent / "pack", "train")
    row = next(row for row in documents if row["url"] == urls[0])
    tokenizer = Tokenizer.load(arm.parent.parent / "tokenizer")
    text = tokenizer.decode(split.read(row["start"] + 1, row["start"] + 60).tolist())
    (traced,) = trace(arm, passage=text, forgotten=str(branches / "exact"), limit=3).arms
    (branch,) = trace(branches / "exact", passage=text, loss=True, limit=3).arms
    assert traced.documents[0].document_id == row["document_id"] == branch.documents[0].document_id
    assert branch.documents[0].forgotten == "drop" and not branch.documents[0].readings
    assert traced.passage is not None and branch.passage is not None
    (change,) = traced.passage.changes
    tokens = traced.passage.tokens
    assert traced.passage.nats == pytest.approx(change.before * tokens) != branch.passage.nats
    assert branch.passage.nats == pytest.approx(change.after * tokens)
    assert (change.exact, change.documents, change.rule) == (True, 3, "drop")
    assert row["document_id"] in change.overlapping and change.held_out is not None
    with pytest.raises(ConfigError, match="is not a run that forgot documents"):
        trace(arm.with_name("relu2"), passage=text, forgotten=str(branches / "exact"))


def test_forgetting_states_what_it_needs(smoke_run: Path, tmp_path: Path, stamm: Stamm) -> None:
    (tmp_path / "r.txt").write_text("https://host.example/\n")
    run = f"run={smoke_run}"
    for words, message in (
        ((run, "arm=xielu"), "documents is empty: there is nothing to forget"),
        (("documents=r.txt",), "run is empty"),
        ((run, "arm=xielu", "documents=none.txt"), "none.txt"),
        ((run, "arm=xielu", "documents=r.txt", "rule=erase"), "rule"),
    ):
        done = stamm("run", "pretrain.forget", *words)
        assert done.returncode == 2 or "none.txt" in done.stderr
        assert message in done.stderr, done.stderr
    (tmp_path / "busy").mkdir()
    with (tmp_path / "busy" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = stamm("run", "pretrain.forget", run, "arm=xielu", "documents=r.txt", "--out", "busy")
        assert done.returncode == 1 and "another process uses busy" in done.stderr, done.stderr
    shutil.rmtree(tmp_path / "busy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.txt"]


@pytest.mark.slow
def test_a_release_with_checkpoints_is_replayed(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    # A release writes released.json into the run.
    arm = shutil.copytree(smoke_run, tmp_path / "run") / "arms" / "xielu"
    done = stamm("release", str(arm), "checkpoints=true", "--out", "release")
    assert done.returncode == 0, done.stderr
    assert read_record(ReleaseFile, tmp_path / "release/release.json").arm == "xielu"
    given = ("verify", "release", "--replay", "3", "--seed", "28")
    refused = stamm(*given)
    assert (
        refused.returncode == 1 and "Name the folder pack/ of the run with --pack" in refused.stderr
    )
    shown = stamm(*given, "--pack", str(smoke_run / "pack"), "--json")
    assert shown.returncode == 0, shown.stderr
    replayed = json.loads(shown.stdout)["replay"]
    assert [(s["first"], s["last"]) for s in replayed["picked"]] == [(0, 21), (21, 25), (25, 30)]
