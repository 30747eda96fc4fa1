"""`stamm audit` of a Hugging Face folder, and the recipe that compares loss masks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from stamm.base.files import read_json
from stamm.cli.main import main
from stamm.models.hub import HubSpecialIds, hub_config, hub_state
from stamm.models.serialization import load_decoder
from stamm.recipes.audit import GoldfishStudy
from stamm.recipes.resolve import build
from tests.unit.taught_decoder import audited_folders

TEXTS = ("Call me Ishmael. Some years ago, never mind how long.", "Happy families are all alike.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    made = audited_folders(
        root, {"schema": 1, "probes": []}, texts=TEXTS, by_heart=(), d_model=16, steps=0
    )
    decoder = load_decoder(made["model"])
    hub = root / "hub"
    hub.mkdir()
    special = HubSpecialIds(begin=1, end=2, pad=3)
    (hub / "config.json").write_text(json.dumps(hub_config(decoder.config, special)))
    save_file(hub_state(decoder), str(hub / "model.safetensors"))
    (hub / "tokenizer.json").write_bytes((made["tokenizer"] / "tokenizer.json").read_bytes())
    return hub


def test_what_a_hugging_face_folder_needs_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "passages=FILE" in said


def test_a_hugging_face_folder_with_own_passages(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.jsonl"
    lines = [{"text": text, "repeats": n} for n, text in enumerate(TEXTS)]
    mine.write_text("\n".join(map(json.dumps, lines)))
    command = ["audit", str(folder), f"passages={mine}", "prefix_tokens=3", "new_tokens=4",
               "grid.prefixes=3", "grid.offsets=0", f"reference={folder}",
               "--out", str(tmp_path / "out")]  # fmt: skip
    assert main([*command, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert main(command) == 0
    assert read_json(tmp_path / "out" / "grid.json")["points"] == 2
    assert read_json(tmp_path / "out" / "membership.json")["reference_sha256"]
    capsys.readouterr()
    assert main(["audit", str(folder), f"passages={tmp_path / 'none.jsonl'}"]) != 0
    assert "none.jsonl" in capsys.readouterr().err


def test_arms_differ_in_the_loss_mask_alone() -> None:
    study = build("audit.goldfish", "arms.2.goldfish.k=4")
    assert isinstance(study, GoldfishStudy)
    found = {arm.name: study.pretrain_of(arm) for arm in study.arms}
    assert found["none"].goldfish is None
    hashes = {name: one.goldfish.hash for name, one in found.items() if one.goldfish}
    assert hashes == {"apertus": "apertus", "stamm": "stamm"}
    assert [one.goldfish.k for one in found.values() if one.goldfish] == [50, 4]
    assert len({one.model for one in found.values()}) == 1


@pytest.mark.slow
def test_masks_are_compared_on_one_page_by_one_command(tmp_path: Path) -> None:
    assert main(["run", "audit.smoke", "--out", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for key in ("memory", "memory-paired", "goldfish", "membership", "grid-0", "grid-1", "grid-2"):
        assert f'id="{key}"' in page
    assert "minus\u200anone" in page or "minus none" in page
    masks = [
        read_json(tmp_path / "run" / "arms" / arm / "config.json")["config"]["goldfish"]
        for arm in ("none", "apertus", "stamm")
    ]
    assert masks[0] is None
    assert [mask["hash"] for mask in masks[1:]] == ["apertus", "stamm"]
