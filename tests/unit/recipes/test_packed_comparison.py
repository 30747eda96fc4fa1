"""Comparisons on the packed corpus of another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.recipes.execute import RecipeRun
from stamm.recipes.resolve import resolve

TAKEN = ("corpus", "tokenizer", "pack")


def taken(source: Path, folder: Path) -> Path:
    """A comparison that has done the steps before its tuning."""
    run = RecipeRun(resolve("compare.smoke", [f"packed={source}"]), folder)
    run.steps = [step for step in run.steps if step.name in TAKEN]
    assert run.execute(quiet=True)
    return folder


def test_tokens_and_tokenizer_are_those_of_the_other_run(smoke_run: Path, tmp_path: Path) -> None:
    steps = resolve("compare.smoke", [f"packed={smoke_run}"]).config.steps()
    first = [step.name for step in steps if not step.name.startswith("activation.")][:4]
    assert first == [*TAKEN, "tune.swiglu.0"]
    run = taken(smoke_run, tmp_path / "run")
    names = {
        path.relative_to(run) for n in TAKEN for path in (run / n).rglob("*") if path.is_file()
    }
    assert Path("pack/manifest.json") in names and Path("tokenizer/tokenizer.json") in names
    assert {name for name in names if name.parts[0] == "corpus"} == {Path("corpus/summary.json")}
    for name in names:
        assert (run / name).samefile(smoke_run / name)  # no second copy on the disk
    packed = {
        path.relative_to(smoke_run) for path in (smoke_run / "pack").rglob("*") if path.is_file()
    }
    assert packed <= names


def test_files_are_copied_where_they_cannot_be_linked(
    smoke_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stamm.corpus.reuse_job.link", lambda source, path: False)
    run, name = taken(smoke_run, tmp_path / "run"), "pack/train-00000.bin"
    assert not (run / name).samefile(smoke_run / name)
    assert (run / name).read_bytes() == (smoke_run / name).read_bytes()


def test_a_damaged_file_of_the_other_run_is_refused(smoke_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(smoke_run, source)
    file = source / "pack" / "train-00000.bin"
    file.write_bytes(file.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(DataError, match=r"pack/train-00000\.bin differs"):
        taken(source, tmp_path / "run")


def test_a_missing_file_of_the_other_run_is_refused(smoke_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(smoke_run, source)
    (source / "pack" / "train-00000.idx").unlink()
    with pytest.raises(DataError, match=r"train-00000\.idx, which step pack wrote, is missing"):
        taken(source, tmp_path / "run")
    alone = tmp_path / "alone"
    for name in TAKEN:
        shutil.copytree(smoke_run / name, alone / name)
    with pytest.raises(DataError, match="has no record of its files"):
        taken(alone, tmp_path / "other")


def test_what_belongs_to_an_own_corpus_is_refused(smoke_run: Path, tmp_path: Path) -> None:
    for setting in ("corpus.seed=5", "tokenizer.vocab_size=9000", "pack.seed=5"):
        with pytest.raises(ConfigError, match=f"no step of this run reads {setting.split('=')[0]}"):
            RecipeRun(resolve("compare.smoke", [f"packed={smoke_run}", setting]), tmp_path).check()


def test_a_run_that_does_not_fit_is_refused(smoke_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no packed corpus"):
        resolve("compare.smoke", [f"packed={tmp_path}"]).config.steps()
    vocabulary = read_json(smoke_run / "pack" / "manifest.json")["vocabulary"]
    small = resolve(
        "compare.smoke", [f"packed={smoke_run}", f"pretrain.model.vocab_size={vocabulary - 1}"]
    )
    with pytest.raises(ConfigError, match=f"vocab_size = {vocabulary - 1} is smaller") as error:
        small.config.steps()
    assert f"vocab_size={vocabulary} or more" in error.value.fix
    (tmp_path / "pack").mkdir()
    manifest = read_json(smoke_run / "pack" / "manifest.json")
    manifest["splits"].pop("held_out")
    (tmp_path / "pack" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="has no held-out text"):
        resolve("compare.smoke", [f"packed={tmp_path}"]).config.steps()
