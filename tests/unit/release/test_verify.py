"""`stamm verify` finds and names every change of a released folder."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import RunError
from stamm.base.files import sha256_bytes, write_json
from stamm.cli.main import main
from stamm.release import write_release as writing
from stamm.release.checksums import SUMS, read_sums, write_sums
from stamm.release.config import ReleaseConfig
from stamm.release.layout import SIGNATURE
from stamm.release.verify import verify
from tests.unit.release.conftest import facts_of, finished_run, no_job

ARM = "run/arms/xielu"


def named(folder: Path) -> list[str]:
    """The files that `verify` names."""
    return [problem.file for problem in verify(folder)]


def test_a_release_holds(released: Path) -> None:
    assert not list(verify(released))
    assert main(["verify", str(released)]) == 0


def test_every_flipped_byte_is_found_and_named(released: Path) -> None:
    files = [path for path in sorted(released.rglob("*")) if path.is_file()]
    sizes = [path.stat().st_size for path in files]
    draw = random.Random(19)
    # Every file, SHA256SUMS and its last line among them, and then by size.
    picked = [*files, *draw.choices(files, weights=sizes, k=200 - len(files))]
    for path in picked:
        before = path.read_bytes()
        place = draw.randrange(len(before))
        changed = bytearray(before)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        first = next(verify(released), None)
        assert first is not None, (path, place)
        assert first.file == path.relative_to(released).as_posix()
        path.write_bytes(before)
    assert not named(released)


def test_missing_changed_and_extra_files_are_all_named(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (released / "config.json").unlink()
    (released / "tokenizer.json").write_bytes(b"{}")
    (released / "run" / "more.bin").write_bytes(b"x")
    assert named(released)[:3] == ["config.json", "run/more.bin", "tokenizer.json"]
    assert main(["verify", str(released)]) == 1
    assert capsys.readouterr().out.splitlines() == ["config.json is missing"]
    assert main(["verify", str(released), "--all", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3


def test_a_pipe_is_named_and_does_not_hang(released: Path) -> None:
    (released / "config.json").unlink()
    os.mkfifo(released / "config.json")
    assert named(released) == ["config.json"]


def test_a_signature_is_checked_whatever_else_is_wrong(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "public.pem"
    assert main(["verify", str(released), "--key", str(key)]) == 1
    assert "public.pem does not exist" in capsys.readouterr().err
    key.write_text("no key")
    (released / "release.json").unlink()
    problems = [problem.file for problem in verify(released, key)]
    assert problems[0] == "release.json" and problems[-1] == SIGNATURE
    assert main(["verify", str(released), "--key", str(key), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["signature"] == "not checked"


def test_names_with_line_separators_are_read_as_written(tmp_path: Path) -> None:
    (tmp_path / "a\u2028b").write_text("x")
    written = write_sums(tmp_path)
    assert read_sums(tmp_path) == written != {}


@pytest.mark.parametrize("name", [".gitattributes", ".cache/huggingface/x.lock", ".git/HEAD"])
def test_files_of_git_and_the_hubs_client_are_no_problem(released: Path, name: str) -> None:
    (released / name).parent.mkdir(parents=True, exist_ok=True)
    (released / name).write_text("*.safetensors filter=lfs")
    assert not named(released)


@pytest.mark.parametrize(
    "name", [".gitattributes.py", ".gitignore", ".git.py", ".cache/huggingface.py"]
)
def test_files_with_similar_names_are_named(released: Path, name: str) -> None:
    (released / name).parent.mkdir(parents=True, exist_ok=True)
    (released / name).write_text("x")
    assert named(released) == [name]


def test_a_link_to_a_folder_is_named(released: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "more.py").write_text("x")
    (released / "code").symlink_to(tmp_path / "code")
    assert named(released) == ["code"]
    (released / "code").unlink()
    shutil.move(released / "run", tmp_path / "run")
    (released / "run").symlink_to(tmp_path / "run")
    assert "run" in named(released)


OTHER = "0" * 64


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        (f"{ARM}/evaluate/blimp.json", ("model_sha256",), OTHER),
        (f"{ARM}/model/decoder.json", ("weights_sha256",), OTHER),
        (f"{ARM}/manifest.json", ("inputs", "pack", "sha256"), OTHER),
        (f"{ARM}/manifest.json", ("inputs", "tokenizer", "sha256"), OTHER),
        ("parity.json", ("model_sha256",), OTHER),
        ("parity.json", ("passed",), False),
        ("run/pack/manifest.json", ("tokenizer_sha256",), OTHER),
        ("bom.cdx.json", ("metadata", "component", "hashes"), [{"content": OTHER}]),
        ("bom.cdx.json", ("metadata", "component", "hashes"), 3),
        ("release.json", ("formats",), 3),
    ],
)
def test_records_that_contradict_each_other_are_named(
    released: Path, file: str, keys: tuple[str, ...], value: Any
) -> None:
    """Even when SHA256SUMS was made again: the hashes hold, what the files state does not."""
    content = json.loads((released / file).read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (released / file).write_text(json.dumps(content))
    write_sums(released)
    assert file in named(released)


def test_another_tokenizer_beside_the_exported_weights_is_named(released: Path) -> None:
    (released / "tokenizer.json").write_bytes(b"{}")
    write_sums(released)
    assert named(released) == ["tokenizer.json"]


def test_sums_that_lead_out_of_the_folder_are_refused(released: Path) -> None:
    lines = f"{OTHER}  ../outside\n"
    own = f"# SHA-256 of the lines above: {sha256_bytes(lines.encode())}\n"
    (released / SUMS).write_text(lines + own)
    assert named(released) == [SUMS]


def test_a_folder_without_sums_is_not_a_release(tmp_path: Path) -> None:
    assert named(tmp_path) == [SUMS]
    with pytest.raises(RunError, match="is not a folder"):
        list(verify(tmp_path / "none"))


def test_sha256sum_reads_the_sums(released: Path) -> None:
    lines = (released / SUMS).read_text().splitlines()
    assert lines[-1].startswith("# ")
    assert [line.split("  ", 1)[1] for line in lines[:-1]] == sorted(read_sums(released))


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_an_exported_file_that_was_exchanged_with_its_sum_is_named(
    exported: Path, file: str
) -> None:
    content = bytearray((exported / file).read_bytes())
    content[-3] ^= 1
    (exported / file).write_bytes(content)
    write_sums(exported)
    assert file in named(exported)


def test_an_exchanged_export_with_its_record_is_named(exported: Path) -> None:
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    parity = json.loads((exported / "parity.json").read_text())
    parity["sha256"]["model.safetensors"] = sha256_bytes(weights.read_bytes())
    (exported / "parity.json").write_text(json.dumps(parity))
    write_sums(exported)
    assert named(exported) == ["parity.json"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("of nyu-mll/blimp | accuracy | 0.5 |", "of nyu-mll/blimp | accuracy | 0.9 |"),
        ('"value": 0.5', '"value": 0.9'),
        ("This model was not audited for memorization.", "Nothing was memorized."),
        ("| transformers | transformers 5 |", "| transformers | transformers 6 |"),
    ],
)
def test_a_card_with_other_numbers_than_the_records_is_named(
    released: Path, before: str, after: str
) -> None:
    card = released / "README.md"
    text = card.read_text()
    assert before in text
    card.write_text(text.replace(before, after, 1))
    write_sums(released)
    assert named(released) == ["README.md"]


def test_results_for_the_hub_with_other_numbers_are_named(released: Path) -> None:
    """A result on 7 of 67,000 pairs is none of the dataset: no file may claim one."""
    file = released / ".eval_results" / "blimp.yaml"
    file.parent.mkdir()
    claim = {"dataset": {"id": "nyu-mll/blimp", "task_id": "default"}, "value": 0.9}
    file.write_text(json.dumps([claim]))
    write_sums(released)
    assert named(released) == [".eval_results/blimp.yaml"]


def test_the_sentence_says_what_an_unsigned_folder_does_not_prove(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(released)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "every file has the SHA-256 in SHA256SUMS" in lines[0]
    assert "had no receipt in the run" in lines[1] and "evaluate/blimp.json" in "".join(
        json.loads((released / "release.json").read_text())["without_receipt"]
    )
    assert lines[2].startswith("not signed.") and "not who wrote the folder" in lines[2]


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release whose parity.json has the hashes of the exported files, as `stamm export` writes it."""
    monkeypatch.setattr(writing, "write_activation", lambda model, folder: None)
    arm = finished_run(tmp_path / "run")
    folder = arm / "export" / "transformers"
    parity = json.loads((folder / "parity.json").read_text())
    files = {path.name: path for path in folder.iterdir() if path.suffix != ".md"}
    del files["parity.json"]
    parity["files"] = {name: path.stat().st_size for name, path in files.items()}
    parity["sha256"] = {name: sha256_bytes(path.read_bytes()) for name, path in files.items()}
    write_json(folder / "parity.json", parity)
    out = tmp_path / "exported"
    writing.write_release(ReleaseConfig(), facts_of(arm), out, no_job)
    assert not named(out)
    return out
