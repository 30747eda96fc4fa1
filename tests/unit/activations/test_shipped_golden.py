"""The golden vectors that lie in golden/: whole, of the spec that ships, and met by its kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.activations.catalog import get
from stamm.activations.conformance.golden import golden_files, judge_golden
from stamm.activations.conformance.implementations import StammImplementation
from stamm.base.files import read_json, sha256_file

FOLDER = Path(__file__).parents[3] / "golden" / "xielu"
FILES = golden_files(FOLDER)


def test_the_manifest_holds() -> None:
    manifest = read_json(FOLDER / "manifest.json")
    assert manifest["content_hash"] == get("xielu").content_hash
    assert set(manifest["files"]) == {file.name for file in FILES}
    for file in FILES:
        assert manifest["files"][file.name]["sha256"] == sha256_file(file)
    assert {file.name.split("-")[1] for file in FILES} == {"initial", "apertus"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem[17:])
def test_ours_meets_them(file: Path) -> None:
    verdict = judge_golden(file, StammImplementation())
    assert verdict.passed
    assert sum(found.inputs for found in verdict.dtypes) > 20_000
