"""Every setting that the steps of a recipe record is read by one of their jobs.

`tests/unit/recipes/test_unread_settings.py` checks that every setting reaches a step; here whole toy
runs record which fields of the steps' configurations their jobs read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stamm.recipes import execute, jobs
from stamm.runs.job import Workspace
from tests.unit.align.finetuned import PROMPTS, chats, pairs
from tests.unit.config_reads import recorded

pytestmark = pytest.mark.slow

# Fields that a toy run has no use for, by the class of the step's configuration.
UNUSED = {
    "AuditConfig": {
        "candidates",  # no made-up canaries are planted
        "reference",  # refused in recipes, `recipes.checks.check_reference`
    },
    "ReferenceConfig": {"batch_tokens"},  # read by the processes of the shards
    "ExportConfig": {"bits_tolerance"},  # refused with F32
    "FineTuneJobConfig": {
        "engine.checkpoint_every",  # the runs are shorter
        "engine.on_nonfinite.deviations",  # read after a window of steps
        "context",  # of the model that is built
        "schedule.law",  # of rates that fall
        "schedule.warmup_from",  # refused without a warm-up
    },
    "PackConfig": {"planted_in"},
    "PretrainConfig": {
        "epochs",  # sequences and a packed corpus are given
        "model.max_context",
        "pack",
        "engine.on_nonfinite.at_most",  # runs of a comparison are shorter than its window
        "engine.on_nonfinite.deviations",
    },
    "PrepareConfig": {
        "bad_rows",  # all rows are good
        "limits.html_depth",  # the rows are JSONL
        "limits.html_tags",
        "limits.record_bytes",
        "min_references",  # of QRPO
        "seed",
    },
    "ReportConfig": {"examples", "hosts", "languages", "smoothing"},  # there is nothing to list or smooth
}  # fmt: skip


# These share their settings, many of which only some texts and hosts need.
CORPUS = ("canaries", "filter", "global_filter", "finalize")


# Its fields are the content of a file, which is written whole.
WRITTEN = "PlanConfig"
# Of sections that the pages of these runs do not have; refused there as settings.
OF_PASSAGES = {"ReportConfig": {"passages", "redact"}}
OF_OTHER_SECTIONS = {"ReportConfig": {"passages", "redact", "rows"}}
# Not read where the run itself wrote the rows, and refused there as settings.
OF_FOREIGN_ROWS = {"PrepareConfig": {"fields", "max_bad_rows"}, "ScoreConfig": {"bad_rows"}}
# Not read without a steering vector, and refused there.
OF_STEERING = {"SampleConfig": {"any_model", "strength"}}


class Unread:
    """Fields that no job of a run read, by the class of their configuration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[str, set[str]] = {}
        monkeypatch.setattr(execute, "job", self._spied)

    def _spied(self, kind: str) -> Any:
        real = jobs.job(kind)
        if kind in CORPUS:
            return real

        def work(config: Any, place: Workspace) -> None:
            with recorded(config) as reads:
                real(config, place)
            name, unread = type(config).__name__, set(reads.unread(config))
            self.found[name] = self.found.get(name, unread) & unread

        return work

    def surprising(self) -> dict[str, set[str]]:
        """Those that no entry of `UNUSED` explains; names of fields are read, all at once."""
        left = {name: found - UNUSED.get(name, set()) for name, found in self.found.items()}
        named = {n: {f for f in fs if not f.startswith("fields.")} for n, fs in left.items()}
        return {name: fields for name, fields in named.items() if fields and name != WRITTEN}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[str]]]:
    """A run of the recipe `smoke`, and the fields that its jobs did not read."""
    root = tmp_path_factory.mktemp("smoke") / "run"
    with pytest.MonkeyPatch.context() as patch:
        unread = Unread(patch)
        execute.run("smoke", "execution.workers=1", out=root, quiet=True)
    return root, unread.surprising()


def test_a_study_reads_its_settings(smoke: tuple[Path, dict[str, set[str]]]) -> None:
    assert smoke[1] == {}


@pytest.mark.parametrize("recipe", ["sft", "qrpo", "dpo", "kto", "reward", "sampled"])
def test_alignment_reads_its_settings(
    smoke: tuple[Path, dict[str, set[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
) -> None:
    rows = {"sft": chats(), "sampled": [{"prompt": prompt} for prompt in PROMPTS]}
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows.get(recipe, pairs())))
    given = [f"data={data}", "prepare.held_out=0.3"]
    if recipe == "sampled":
        given = [f"prompts={data}", f"test_prompts={data}", "n=6", "test_n=2", "select.take=all"]
        given += ["reward=Length", "reward.smallest=16", "reward.largest=40"]
        given += ["sampling.max_new_tokens=12"]
    settings = ["train.batch.0.size=2", "train.engine.threads=1", "train.engine.compile=off"]
    unread = Unread(monkeypatch)
    execute.run(
        f"align.{'qrpo' if recipe == 'sampled' else recipe}",
        f"run={smoke[0]}",
        "arm=xielu",
        *settings,
        *given,
        out=tmp_path / "run",
        quiet=True,
    )
    known = {"sampled": OF_FOREIGN_ROWS | OF_STEERING, "reward": OF_PASSAGES}
    assert unread.surprising() == known.get(recipe, {})


def test_adapting_reads_its_settings(
    smoke: tuple[Path, dict[str, set[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = Unread(monkeypatch)
    given = [f"run={smoke[0]}", "arm=relu2", "activation=xielu"]
    execute.run("adapt.activation", *given, out=tmp_path / "run", quiet=True)
    assert unread.surprising() == OF_OTHER_SECTIONS


@pytest.mark.parametrize("recipe", ["compare.evidence_smoke", "audit.smoke"])
def test_a_comparison_reads_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    unread = Unread(monkeypatch)
    execute.run(recipe, "execution.workers=1", out=tmp_path / "run", quiet=True)
    assert unread.surprising() == (OF_PASSAGES if recipe.startswith("compare") else {})
