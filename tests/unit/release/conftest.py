"""One finished arm with an export, and its release, for all tests of the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stamm.base.files import sha256_file, write_json
from stamm.corpus.transparency.config import EvidenceConfig
from stamm.export.transformers_target import write_folder
from stamm.models.serialization import load_decoder
from stamm.release import write_release as writing
from stamm.release.config import ReleaseConfig
from stamm.release.facts import ReleaseFacts, read_release_facts
from stamm.runs.model_outputs import weights_sha256
from tests.unit.untrained_run import HOSTILE, untrained_run

HOSTILE_TASK = "task | <script>alert(1)</script>\n---\nlicense: mit"


def finished_run(root: Path) -> Path:
    """A run folder with one arm that has everything a release reads but a corpus; its arm."""
    root.mkdir()
    inputs = untrained_run(root)
    shutil.rmtree(inputs["corpus"])
    arm = root / "arms" / "xielu"
    arm.mkdir(parents=True)
    inputs["model"].rename(arm / "model")
    model = weights_sha256(arm / "model")
    export = arm / "export" / "transformers"
    export.mkdir(parents=True)
    tokenizer = inputs["tokenizer"] / "tokenizer.json"
    write_folder(export, load_decoder(arm / "model"), tokenizer)
    (export / "README.md").write_text('---\nlicense: "apache-2.0"\n---\n\n# A model\n')
    parity = {
        "schema": 1, "model_sha256": model, "reference": "stamm", "candidate": "transformers 5",
        "tolerance": 1e-4, "passed": True, "comparisons": [],
    }  # fmt: skip
    write_json(export / "parity.json", parity)
    write_json(root / "config.json", {"schema": 1, "recipe": "mine.py", "config": {}})
    write_json(arm / "config.json", {"schema": 1, "kind": "pretrain"})
    paths = {"pack": root / "pack" / "manifest.json", "tokenizer": tokenizer}
    manifest = {
        "schema": 1, "libraries": {"torch": "2.13.0", "duckdb": "missing"},
        "inputs": {
            name: {"path": f"../../{name}", "sha256": sha256_file(path)}
            for name, path in paths.items()
        },
    }  # fmt: skip
    write_json(arm / "manifest.json", manifest)
    summary = {
        "schema": 1, "parameters": 1, "steps": 3, "trained_tokens": 90, "epochs": 1.0,
        "final_loss_nats": 2.5, "flops": 1e9, "decay_start_step": 2,
    }  # fmt: skip
    write_json(arm / "summary.json", summary)
    for name, metric in (("blimp", "accuracy"), ("mine", HOSTILE_TASK)):
        values = {metric: {"value": 0.5}, "broken": {"value": float("nan")}}
        task = {"schema": 1, "task": name, "model_sha256": model, "num_items": 7, "metrics": values}
        write_json(arm / "evaluate" / f"{name}.json", task)
    return arm


def facts_of(arm: Path, **settings: Any) -> ReleaseFacts:
    """What a release of `arm` knows; `settings` of the provider's statements."""
    return read_release_facts(ReleaseConfig(), arm, EvidenceConfig(**settings))


def no_job(kind: str) -> Callable[..., None]:
    """Without a corpus, no job may run."""
    raise AssertionError(kind)


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arm."""
    return finished_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def _released(arm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "write_activation", lambda model, folder: None)
        out = tmp_path_factory.mktemp("released") / "model"
        writing.write_release(ReleaseConfig(), facts_of(arm), out, no_job)
    return out


@pytest.fixture
def released(_released: Path, tmp_path: Path) -> Path:
    """A release of its own for each test, without the files of the activation."""
    return shutil.copytree(_released, tmp_path / "release")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases without the files of the activation, whose derivation takes seconds."""
    monkeypatch.setattr(writing, "write_activation", lambda model, folder: None)


__all__ = ["HOSTILE", "HOSTILE_TASK", "facts_of", "finished_run", "no_job"]
