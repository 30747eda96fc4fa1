"""The whole release of a trained run, and the package as a wheel outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Stamm


@pytest.mark.slow
def test_a_trained_run_is_released_and_verified(
    smoke_run: Path, tmp_path: Path, stamm: Stamm
) -> None:
    run = tmp_path / "run"  # a release writes released.json into the run
    shutil.copytree(smoke_run, run)
    arm = run / "arms" / "xielu"
    out = tmp_path / "release"
    done = stamm("release", str(arm), "--out", str(out), "evidence.provider=Someone", "--dry-run")
    assert done.returncode == 0, done.stderr
    listed = {line.split(maxsplit=1)[1] for line in done.stdout.splitlines()[1:-1]}
    assert not out.exists()
    done = stamm("release", str(arm), "--out", str(out), "evidence.provider=Someone")
    assert done.returncode == 0, done.stderr
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == listed | {"SHA256SUMS"}
    assert {
        "documents/datacard.md",
        "documents/training_summary.md",
        "activation/xielu.html",
    } < found
    assert any(name.startswith("activation/golden/") for name in found)
    assert "Someone" in (out / "documents" / "training_summary.md").read_text()
    assert stamm("verify", str(out), "--all").returncode == 0
    hashes = subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=out, check=False)
    assert hashes.returncode == 0
    page = stamm("report", str(run), "--out", str(tmp_path / "page.html"))
    assert page.returncode == 0, page.stderr
    assert "bom.cdx.json" in (tmp_path / "page.html").read_text()


def _files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.slow
def test_the_wheel_works_outside_of_the_repository(tmp_path: Path) -> None:
    """Without a network; other libraries come from this environment."""
    copy, dist, place = tmp_path / "copy", tmp_path / "dist", tmp_path / "env"
    files = _files()
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    package = {name for name in files if name.startswith("src/stamm/")}
    assert package <= {f"src/{name}" for name in zipfile.ZipFile(wheel).namelist()}
    with tarfile.open(archive) as opened:
        assert package <= {name.partition("/")[2] for name in opened.getnames()}

    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    (own,) = place.glob("lib/python*/site-packages")
    # A path in a .pth file adds the folder, not the .pth files in it, which name this checkout.
    (own / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def call(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(own) in call(str(python), "-c", "import stamm; print(stamm.__file__)")
    command = str(place / "bin" / "stamm")
    assert "release" in call(command, "--help")
    assert "xielu" in call(command, "ls", "activations")
    assert "demo" in call(command, "ls", "recipes")
    assert "alpha_p" in call(command, "show", "xielu")
    assert (tmp_path / "xielu").exists() is False
    call(command, "release", "xielu", "--out", "xielu")
    assert (tmp_path / "xielu" / "build" / "torch-cpu" / "metadata.json").is_file()
