"""One flipped bit in any file of a finished run is refused by every command that reads the file.

A command is started on the intact run, and the files that it reads are noted. Each of them is then altered: the
command must name it and write nothing, or its results must be those of the intact run, because it measures
again what it finds. All other files are altered together: the results must be the same, bit by bit.
"""

from __future__ import annotations

import json
import os
import re
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


NOT_READ = (".lock", "log/run.log", ".begun")
"""Endings of the files of a finished run that have no receipt."""


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
    "sample": Command(
        ("sample", f"R/{ARM}", "prompts=P", "max_new_tokens=4", "--out", "R/../answers"),
        "../answers",
        (f"{ARM}/model/decoder.json", f"{ARM}/model/model.safetensors", "tokenizer/tokenizer.json"),
    ),
    "align": Command(
        (
            *("run", "align.sft", f"run=R/{ARM}", "data=D", "train.batch.0.size=2", "audit=none"),
            *("export=none", "--out", "R/../tuned"),
        ),
        "../tuned/arms/sft/model",
        (f"{ARM}/model/decoder.json", f"{ARM}/model/model.safetensors", "tokenizer/tokenizer.json"),
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


def _remove_results(run: Path, command: Command) -> None:
    """Remove what an earlier start wrote beside the run, so that nothing is found to be done."""
    if command.out.startswith("../"):
        place = run.parent / command.out.split("/")[1]
        place.unlink() if place.is_file() else shutil.rmtree(place, ignore_errors=True)


def test_every_file_of_a_finished_run_has_a_receipt(smoke_run: Path) -> None:
    receipts._tables.clear()
    without = {
        name
        for name in _files(smoke_run)
        if not receipts.is_covered(smoke_run / name) and not name.endswith(NOT_READ)
    }
    assert without == set()


def _swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-9])
    path.unlink()
    path.symlink_to(other)


def _resealed(path: Path) -> None:
    """A receipt with another hash of one file, and a new hash of its own."""
    plain = json.loads(path.read_text())
    next(iter(plain["outputs"].values()))["sha256"] = "0" * 64
    path.write_text(json.dumps(receipts.seal(plain)))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "a folder": _folder,
    "a link to another file": _link,
}
DAMAGED = (
    f"{ARM}/evaluate/blimp.json",
    f"{ARM}/evaluate/held_out.json",
    f"{ARM}/audit/memorization.json",
    f"{ARM}/metrics.jsonl",
    f"{ARM}/summary.json",
    f"{ARM}/log/timing.json",
    f"{ARM}/manifest.json",
    f"{ARM}/model/decoder.json",
    "corpus/ledger-00001.parquet",
    "pack/manifest.json",
    "steps/evaluate.xielu.json",
    "manifest.json",
    "config.json",
)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("verb", ["report", "release"])
def test_damage_is_one_line_that_names_the_file(
    verb: str, damage: str, smoke_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[verb]
    for file in DAMAGED:
        if damage == "missing" and "/log/" in file:
            continue  # logs may be deleted
        run = _copy(smoke_run, tmp_path / "run")
        DAMAGE[damage](run / file)
        receipts._tables.clear()
        assert main([word.replace("R", str(run), 1) for word in command.words]) in (1, 2), file
        said = capsys.readouterr().err.splitlines()
        named = file if (run / "config.json").is_file() else "smoke is not a run folder"
        if verb == "release" and file == "config.json":
            named = file
        assert len(said) == 1 and named in said[0], (file, said)
        assert not Path(os.path.normpath(run / command.out)).exists()


def test_valid_files_in_another_place_are_refused(
    smoke_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another arm, of another run, or a receipt that was written anew."""
    other = tmp_path / "other" / "smoke"
    shutil.copytree(smoke_run, other)
    for name in ("config.json", "steps/evaluate.xielu.json"):
        plain = json.loads((other / name).read_text())
        plain["version" if name == "config.json" else "seconds"] = 0
        (other / name).write_text(json.dumps(receipts.seal(plain)))
    relu2 = ARM.replace("xielu", "relu2")

    def exchange(names: tuple[str, ...]) -> Callable[[Path], None]:
        def work(run: Path) -> None:
            for name in names:
                (run / name).write_bytes((other / name).read_bytes())

        return work

    manifest = "manifest.json"
    cases: dict[str, Callable[[Path], object]] = {
        f"{ARM}/evaluate/blimp.json": lambda run: _swap(
            run / ARM / "evaluate/blimp.json", run / relu2 / "evaluate/blimp.json"
        ),
        f"{ARM}/{manifest}": lambda run: _swap(run / ARM / manifest, run / relu2 / manifest),
        f"{ARM}/log/timing.json": lambda run: _swap(
            run / ARM / "log/timing.json", run / relu2 / "log/timing.json"
        ),
        "steps/evaluate.relu2.json": lambda run: _swap(
            run / "steps/evaluate.xielu.json", run / "steps/evaluate.relu2.json"
        ),
        "config.json": exchange(("config.json",)),
        "steps/evaluate.xielu.json": exchange(("steps/evaluate.xielu.json",)),
        "steps/pack.json": lambda run: _resealed(run / "steps" / "pack.json"),
        f"{ARM}/evaluate/mine.json": lambda run: shutil.copy(
            run / ARM / "evaluate/blimp.json", run / ARM / "evaluate/mine.json"
        ),
    }
    for file, change in cases.items():
        run = _copy(smoke_run, tmp_path / "run")
        change(run)
        receipts._tables.clear()
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 1, file
        said = capsys.readouterr().err.splitlines()
        named = file.replace("xielu", "relu2")  # of two that are exchanged either is named
        assert len(said) == 1 and (file in said[0] or named in said[0]), (file, said)
        assert not (tmp_path / "page.html").exists()


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
    rows = ({"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(8))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"R": str(run), "P": str(tmp_path / "rows.jsonl"), "D": str(tmp_path / "rows.jsonl")}
    words = [re.sub(r"(?<![A-Z])[RPD](?![A-Z])", lambda m: places[m[0]], w) for w in command.words]
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
    read = (read & intact.keys()) | {"steps/pack.json", "manifest.json"}
    assert read >= set(command.reads)
    run = _copy(smoke_run, tmp_path / "run")
    for file in sorted(read):
        if file.startswith(_ONE_OF_A_KIND):
            continue
        before = _flip(run / file)
        _remove_results(run, command)
        capsys.readouterr()
        if main(words) == 0:
            assert _written(run, command) == wanted, file
            run = _copy(smoke_run, tmp_path / "run")
            continue
        assert file in capsys.readouterr().err
        (run / file).write_bytes(before)
        assert _files(run).keys() - {".lock"} == intact.keys() - {".lock"}, file
        if name in ("report", "release"):
            assert not Path(os.path.normpath(run / command.out)).exists()
    _remove_results(run, command)
    for file in intact.keys() - read:
        if not file.startswith(("steps/", "receipts/")) or file.endswith(".begun"):
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
