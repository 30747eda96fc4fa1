"""What the tests of the real command line share."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.forked import Parent, loaded

# A shell that starts the tests in the background lets them, and all they start, ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
Stamm = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*words: str) -> list[str]:
    """The command line that a user types as `stamm WORDS`."""
    return [sys.executable, "-m", "stamm", *words]


def environment() -> dict[str, str]:
    """This process's environment, with the checkout's package first."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


# Wall-clock facts: when, how fast, how long. Everything else must be the same to the bit.
CLOCK = ("log", "steps", ".lock", "manifest.json", "report.html")


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run that must not depend on when or how often it was started."""
    found = {}
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        parts = path.relative_to(run).parts
        if not any(part in CLOCK for part in parts) or parts[0] == "pack":
            found[str(path.relative_to(run))] = path.read_bytes()
    return found


@pytest.fixture(scope="session")
def parent(own_home: None) -> Iterator[Parent]:
    """The process that has loaded the package, which forks the others."""
    with loaded(environment()) as process:
        yield process


@pytest.fixture
def stamm(parent: Parent, tmp_path: Path) -> Stamm:
    """Runs a command line in a folder of its own; the result has stdout, stderr, returncode."""

    def call(*words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return parent.run(["stamm", *words], tmp_path, environment(), timeout=timeout)

    return call


def given_once(*words: str) -> list[str]:
    """The words of a command line without settings that a later one gives again, which is refused."""
    last = {word.partition("=")[0]: word for word in words}
    return [word for word in words if last[word.partition("=")[0]] is word]


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of the smallest recipe, made once for all workers by the real command line. Read only."""
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent  # of all workers
    folder = session / "smoke-run"
    with (session / "smoke-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "stderr.txt").exists():
            folder.mkdir()
            _make_smoke_run(folder)
    return folder / "runs" / "smoke"


def _make_smoke_run(folder: Path) -> None:
    done = subprocess.run(
        command("run", "smoke"),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "stderr.txt").write_text(done.stderr)


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A home folder of the tests' own, and a cache of compiled kernels that later tests share.

    What the cache holds is named by a hash of its content, compiler and flags, so that one test
    session can trust what another has compiled. tests/unit/activations/test_fused_fallback.py
    keeps the path of a first compilation.
    """
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    # inductor's cache mixes code for different vectors up (`engine.trainer.separate_inductor_cache`).
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "native")
    shared = Path(tempfile.gettempdir()) / f"stamm-tests-{os.getuid()}-{capability}"
    os.environ["XDG_CACHE_HOME"] = str(shared / "cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
