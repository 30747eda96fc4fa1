"""Patches for other libraries in docs/conformance: each applies to the installed file, and mends what its test shows."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stamm.activations.board.page import patches_in
from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "conformance"
DIFFS = sorted(FOLDER.glob("*.diff"))
# The module that a file of a repository becomes, by how its path begins.
ROOTS = ("src/", "python/", "")
# Loads one module from another file, then runs a test file with pytest.
RUN = """
import importlib.util, sys
import pytest
name, file, test = sys.argv[1:]


class Finder:
    @staticmethod
    def find_spec(asked, path=None, target=None):
        return importlib.util.spec_from_file_location(name, file) if asked == name else None


sys.meta_path.insert(0, Finder)
__import__(name)
assert sys.modules[name].__file__ == file
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:cpu_seconds", "--rootdir", ".", "-c", "none.ini", test]))
"""


def target(diff: Path) -> tuple[str, str]:
    """The path of the file that a diff changes, and its module."""
    found = re.search(r"^--- a/(\S+)$", diff.read_text(), re.MULTILINE)
    assert found is not None
    path = found[1]
    inner = next(path.removeprefix(root) for root in ROOTS if path.startswith(root))
    return path, inner.removesuffix(".py").replace("/", ".")


def outcome(diff: Path, module: str, file: Path, folder: Path) -> tuple[int, str]:
    """The exit status of the diff's test with the module from `file`, and what it printed."""
    test = FOLDER / f"test_{diff.stem}.py"
    (folder / "none.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-c", RUN, module, str(file), str(test)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout[-3000:] + ran.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("diff", DIFFS, ids=lambda diff: diff.stem)
def test_a_patch_applies_and_the_defect_goes_away(diff: Path, tmp_path: Path) -> None:
    path, module = target(diff)
    library, version = diff.read_text().split(":")[0].split(" ")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert importlib.metadata.version(library) == version
    origin = importlib.util.find_spec(library)
    assert origin is not None and origin.submodule_search_locations
    package = Path(origin.submodule_search_locations[0])
    installed = package / Path(*module.split(".")[1:]).with_suffix(".py")
    copied = tmp_path / path
    copied.parent.mkdir(parents=True)
    shutil.copyfile(installed, copied)
    status, text = outcome(diff, module, copied, tmp_path)
    assert status == 1, text  # tests ran, and failed
    subprocess.run(["git", "apply", "--whitespace=error", str(diff)], cwd=tmp_path, check=True)
    assert copied.read_bytes() != installed.read_bytes()
    status, text = outcome(diff, module, copied, tmp_path)
    assert status == 0, text


def test_every_patch_has_a_test_and_a_subject() -> None:
    assert {f"test_{diff.stem}.py" for diff in DIFFS} == {p.name for p in FOLDER.glob("test_*.py")}
    assert len(patches_in(FOLDER)) == len(DIFFS) >= 1
    for line in patches_in(FOLDER):
        assert re.fullmatch(r"\w+\.diff: \w+ [\d.]+: .{20,120}", line), line
