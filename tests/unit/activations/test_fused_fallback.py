"""Fused passes that cannot be built: told in one line, and done without."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stamm.activations.fused import build, cpu, direct, operation
from stamm.activations.module import activation, build_activation
from stamm.base.errors import ConfigError, RunError

pytestmark = [
    pytest.mark.skipif(
        build.unavailable_reason() is not None,
        reason=f"no CPU kernels: {build.unavailable_reason()}",
    ),
    pytest.mark.slow,
]  # compiles kernels anew


def test_a_damaged_object_is_compiled_again(
    tmp_path: Path,
) -> None:
    code = (
        "import torch\n"
        "from stamm.activations import xielu\n"
        "from stamm.activations.fused import build\n"
        "y = xielu()(torch.linspace(-3, 3, 40000).to(torch.bfloat16))\n"
        "print(build.unavailable_reason(), y.double().sum().item())"
    )
    run = [sys.executable, "-c", code]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": "",
        "OMP_NUM_THREADS": "1",
    }
    first = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    objects = sorted((tmp_path / ".cache" / "stamm" / "fused").glob("*.so"))
    assert len(objects) == 2 and first.stdout.startswith("None ")
    for path in objects:
        path.write_bytes(path.read_bytes()[:1000])
    again = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout == first.stdout
    bare = {**environment, "PATH": str(tmp_path)}
    without = subprocess.run(run, env=bare, capture_output=True, text=True, check=True)
    assert "no C++ compiler" in without.stdout
    assert without.stdout.split()[-1] == first.stdout.split()[-1]


@pytest.mark.parametrize("script", ["exit 3", "exec sleep 1000", "printf '\\377' >&2; exit 1"])
def test_a_compiler_that_does_not_work_is_told_and_done_without(
    script: str, tmp_path: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    code = (
        "import torch\n"
        "from stamm.activations import xielu\n"
        "from stamm.activations.fused import build\n"
        "build._ASKED = 1\n"
        "y = xielu()(torch.linspace(-3, 3, 40000))\n"
        "print(build.unavailable_reason(), y.isfinite().all().item())"
    )
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": "",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert not done.stdout.startswith("None") and done.stdout.endswith("True\n")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("kill -9 $$", "c++ does not compile a kernel: signal 9 ended it"),
        ("exit 3", "c++ does not compile a kernel: it returned 3"),
        ("echo 'no room' >&2; exit 4", "c++ does not compile a kernel: it returned 4 no room"),
    ],
)
def test_how_a_compiler_ended_is_told(script: str, told: str, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    with pytest.raises(RunError) as error:
        build._compile("", [str(compiler)], tmp_path / "one.so", tmp_path / "one.sha256")
    assert error.value.line() == f"{tmp_path}/{told}."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c++"]


def test_what_a_compiler_started_ends_with_it(tmp_path: Path) -> None:
    compiler, started = tmp_path / "c++", tmp_path / "started"
    compiler.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {started}\nwait\n")
    compiler.chmod(0o755)
    with pytest.raises(RunError, match="did not end within 2 s"):
        build._compile("", [str(compiler)], tmp_path / "one.so", tmp_path / "one.sha256", 2)
    state = Path(f"/proc/{int(started.read_text())}/stat")
    until = time.monotonic() + 60
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.05)


@pytest.mark.slow
def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    compiler, log = tmp_path / "c++", tmp_path / "log"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *pass.cpp*) echo compiled >> {log}; sleep 1;; esac\n'
        'exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    code = (
        "import ctypes\n"
        "from stamm.activations.fused import build\n"
        "source = 'extern \"C\" void one(int* to) { *to = 1; }'\n"
        "number = ctypes.c_int(0)\n"
        "build.function(source, 'one')(ctypes.byref(number))\n"
        "print(number.value)"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "caches"), "PATH": path}
    run = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [each.communicate()[0] for each in started] == ["1\n"] * 3
    assert log.read_text() == "compiled\n"
    kept = sorted(path.suffix for path in (tmp_path / "caches" / "stamm" / "fused").iterdir())
    assert kept == [".sha256", ".so"]


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    kept = {name: tmp_path / name for name in (".a.part", ".b.part", ".c", "d.part")}
    for name, path in kept.items():
        path.mkdir()
        (path / "pass.cpp").touch()
        if name != ".b.part":  # which is being compiled now
            long_ago = path.stat().st_mtime - 2 * build._ABANDONED
            os.utime(path, (long_ago, long_ago))
    with pytest.raises(RunError):
        build._compile("", ["/bin/false"], tmp_path / "one.so", tmp_path / "one.sha256")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.part", ".c", "d.part"]


def test_a_kernel_that_does_not_compile_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise RunError("the disk is full")

    monkeypatch.setattr(cpu, "function_of", refused)
    monkeypatch.setattr(operation, "_UNBUILT", set())
    # None that has its kernel from an earlier call, or keeps that it has none for a later one.
    monkeypatch.setattr(activation, "direct_calls", direct.DirectCalls)
    operation.report_once.cache_clear()
    module = build_activation("silu")
    x = torch.linspace(-3, 3, 40000).requires_grad_()
    for _ in range(2):
        module(x).sum().backward()
    assert capsys.readouterr().err.count("the disk is full") == 1
    assert x.grad is not None and x.grad.isfinite().all()


_FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@pytest.mark.parametrize(
    ("home", "before", "told"),
    [
        ("/proc", "", "No such file or directory"),  # nobody may make a folder there
        ("{file}", "", "Not a directory"),
        ("{folder}", _FULL, "File too large"),  # what a full disk is to whoever writes
    ],
)
def test_a_folder_that_cannot_be_written_is_told_once(
    home: str, before: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    home = home.format(file=tmp_path / "file", folder=tmp_path / "folder")
    code = (
        "import torch\n"
        "from stamm.activations.fused import build\n"
        "from stamm.activations.module import build_activation\n"
        f"{before}"
        "for act in map(build_activation, ('silu', 'xielu', 'xielu')):\n"
        "    x = torch.linspace(-3, 3, 40000).requires_grad_()\n"
        "    act(x).sum().backward()\n"
        "    assert x.grad.isfinite().all()\n"
        "print(build.unavailable_reason())"
    )
    environment = {**os.environ, "HOME": home, "XDG_CACHE_HOME": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"a CPU kernel cannot be built in {home}")
    assert told in line and line.endswith("Make that folder writable, and free disk space there.")
    (said,) = done.stderr.splitlines()
    assert said.endswith(f"activations are computed without fused kernels: {line}")


def test_a_graph_of_another_process_asks_for_its_activation() -> None:
    with pytest.raises(ConfigError, match="activation f00 of a compiled or loaded graph was not"):
        torch.ops.stamm.activation([torch.zeros(40000)], [], "f00")
