"""One flipped bit in any file of a finished run is refused by every command that reads the file.

A command is started on the intact run, and the files that it reads are noted. Each of them is then altered: the
command must name it and write nothing, or its results must be those of the intact run, because it measures
again what it finds. All other files are altered together: the results must be the same, bit by bit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import stamm
from stamm.base import receipts
from stamm.base.errors import DataError
from stamm.base.receipts import Receipt
from stamm.cli.main import main
from stamm.release import write_release as writing

pytestmark = pytest.mark.slow

ARM = "arms/xielu"
# Which arms' files a command reads does not matter here; those of one arm stand for the others.
_ONE_OF_A_KIND = ("arms/relu2", "arms/swiglu")


@dataclass(frozen=True)
class Command:
    """A command on the run R, and where it writes, relative to R."""

    words: tuple[str, ...]
    out: str
    reads: tuple[str, ...]


COMMANDS = {
    "evaluate": Command(
        ("evaluate", f"R/{ARM}"),
        f"{ARM}/evaluate",
        (
            "config.json",
            f"{ARM}/model/decoder.json",
            f"{ARM}/model/model.safetensors",
            "pack/held_out-00000.bin",
            "tokenizer/tokenizer.json",
        ),
    ),
    "observe": Command(
        ("observe", f"R/{ARM}"),
        f"{ARM}/observe",
        (f"{ARM}/model/decoder.json", "pack/held_out-00000.bin", "tokenizer/tokenizer.json"),
    ),
    "audit": Command(
        ("audit", f"R/{ARM}"),
        f"{ARM}/audit",
        ("config.json", "corpus/probes.json", "tokenizer/tokenizer.json"),
    ),
    "export": Command(
        ("export", f"R/{ARM}"),
        f"{ARM}/export",
        (f"{ARM}/model/decoder.json", "pack/held_out-00000.bin", "tokenizer/tokenizer.json"),
    ),
    "report": Command(
        ("report", "R", "--out", "R/../report.html"),
        "../report.html",
        (
            f"{ARM}/metrics.jsonl",
            f"{ARM}/evaluate/held_out.json",
            f"{ARM}/log/timing.json",
            "corpus/ledger-00000.parquet",
            "manifest.json",
            "steps/pack.json",
        ),
    ),
    "release": Command(
        ("release", f"R/{ARM}", "--out", "R/../release"),
        "../release",
        (
            f"{ARM}/export/transformers/model.safetensors",
            f"{ARM}/export/transformers/config.json",
            f"{ARM}/export/transformers/parity.json",
            f"{ARM}/export/transformers/README.md",
            f"{ARM}/evaluate/blimp.json",
            f"{ARM}/audit/memorization.json",
            f"{ARM}/model/decoder.json",
            f"{ARM}/metrics.jsonl",
            "pack/order-train.parquet",
            "report.html",
        ),
    ),
}


def _files(run: Path) -> dict[str, bytes]:
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file()
    }


def _written(run: Path, command: Command) -> dict[str, bytes]:
    place = Path(os.path.normpath(run / command.out))
    return {"": place.read_bytes()} if place.is_file() else _files(place)


def _flip(path: Path) -> bytes:
    before = path.read_bytes()
    changed = bytearray(before)
    if changed:
        changed[len(changed) // 2] ^= 1
    path.write_bytes(bytes(changed))
    receipts._tables.clear()  # as in a process of its own
    return before


def _copy(smoke_run: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(smoke_run, place / "smoke")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_altered_file_is_refused_or_not_read(
    name: str,
    smoke_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(writing, "write_activation", lambda model, folder: None)
    command, run = COMMANDS[name], _copy(smoke_run, tmp_path / "run")
    words = [word.replace("R", str(run), 1) for word in command.words]
    read: set[str] = set()
    original: Callable[..., Receipt | None] = receipts.receipt_of

    def noted(path: Path, *, fresh: bool = False) -> Receipt | None:
        full = Path(os.path.normpath(Path(path).absolute()))
        if full.is_relative_to(run):
            read.add(full.relative_to(run).as_posix())
        return original(path, fresh=fresh)

    with monkeypatch.context() as spied:
        spied.setattr(receipts, "receipt_of", noted)
        assert main(words) == 0, capsys.readouterr().err
    wanted = _written(run, command)
    intact = _files(smoke_run)
    read = (read & intact.keys()) | {"steps/pack.json"}
    assert read >= set(command.reads)
    run = _copy(smoke_run, tmp_path / "run")
    for file in sorted(read):
        if file.startswith(_ONE_OF_A_KIND):
            continue
        before = _flip(run / file)
        capsys.readouterr()
        if main(words) == 0:
            assert _written(run, command) == wanted, file
            run = _copy(smoke_run, tmp_path / "run")
            continue
        assert file in capsys.readouterr().err
        (run / file).write_bytes(before)
        assert _files(run).keys() - {".lock"} == intact.keys() - {".lock"}, file
        assert not Path(os.path.normpath(run / command.out)).exists() or not command.out.startswith(
            ".."
        )
    for file in intact.keys() - read:
        if not file.startswith("steps/") or file.endswith(".begun"):
            _flip(run / file)
    assert main(words) == 0, capsys.readouterr().err
    assert _written(run, command) == wanted


@pytest.mark.parametrize(
    "file", ["tokenizer/tokenizer.json", f"{ARM}/model/decoder.json", f"{ARM}/manifest.json"]
)
def test_a_model_with_an_altered_file_is_not_loaded(
    file: str, smoke_run: Path, tmp_path: Path
) -> None:
    run = _copy(smoke_run, tmp_path / "run")
    _flip(run / file)
    if file.endswith("manifest.json"):
        shutil.rmtree(run / "tokenizer")
    with pytest.raises(DataError, match=Path(file).name.replace(".", r"\.")):
        stamm.load(run, "xielu")


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_altered_export_is_not_loaded(file: str, smoke_run: Path, tmp_path: Path) -> None:
    run = _copy(smoke_run, tmp_path / "run")
    export = run / ARM / "export" / "transformers"
    stamm.load(export)
    _flip(export / file)
    with pytest.raises(DataError, match=file.replace(".", r"\.")):
        stamm.load(export)


@pytest.mark.parametrize(
    "file",
    [
        "corpus/ledger-00000.parquet",
        "corpus/documents-00000.parquet",
        "corpus/summary.json",
        "tokens/tokens-00000.bin",
        "tokens/tokens-00000.idx",
        "tokens/index-00000.parquet",
        "tokens/manifests/00000.json",
        "tokenizer/tokenizer.json",
        "pack/train-00000.documents.parquet",
        "pack/manifest.json",
        "manifest.json",
    ],
)
def test_opt_outs_are_not_applied_to_an_altered_corpus(
    file: str, smoke_run: Path, tmp_path: Path, stamm: Callable[..., object]
) -> None:
    run = _copy(smoke_run, tmp_path / "run")
    (tmp_path / "domains.txt").write_text("example.org\n")
    _flip(run / file)
    done = stamm(
        "run", "corpus.replay", f"run={run}", "replay.domains=domains.txt", "--out", "replayed"
    )
    assert done.returncode == 1  # type: ignore[attr-defined]
    assert Path(file).name in done.stderr  # type: ignore[attr-defined]
