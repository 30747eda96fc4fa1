"""Builds shared objects from C++ source: compiled once per machine, cached by hash, loaded on use.

A compiler is not a dependency: where there is none, `unavailable_reason` gives the reason, and activations are
computed by torch's own functions instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from stamm.base.cache_folder import cache_folder, file_lock, is_private
from stamm.base.errors import RunError
from stamm.base.files import sha256_bytes, sha256_file, sha256_value
from stamm.base.processor import cpu_name

CHUNK = 16 * 512  # elements per thread and step, with one partial sum
ROWS = 64  # rows, likewise, where every column has its own parameters
_HOME = Path(__file__).parent
_HEADERS = tuple(
    _HOME / name for name in ("pointwise.h", "vectors.h", "elementary.h", "coefficients.h")
)
_PART = ".part"
_COMPILERS = ("c++", "g++", "clang++")
_MACHINES = {
    "AVX512": "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mavx2 -mfma -mf16c",
    "AVX2": "-mavx2 -mfma -mf16c",
}
_SECONDS = 300  # for a kernel; xielu takes 1
_SECONDS_OF_TORCH = 3600  # of wall time, for a source with torch's headers: 13 of an idle processor
_ABANDONED = 12 * _SECONDS  # the age from which a compile folder is abandoned
_ASKED = 20  # for an answer
_LOADED: dict[str, ctypes.CDLL] = {}
_RUNNING: set[int] = set()  # process ids of compilers, each with a process group of its own
_PROBE = """#include "pointwise.h"
using namespace stamm;
extern "C" float probe(float x) { return exp(log1p(full<Vector<float>>(x)))[omp_get_thread_num()]; }
"""


def unavailable_reason() -> str | None:
    """Why CPU kernels cannot be built here, or None where they can.

    Tested by one build: needs a compiler, OpenMP, and a writable home folder.
    """
    return _unavailable_reason()


@lru_cache(maxsize=1)
def _unavailable_reason() -> str | None:
    if os.name != "posix" or platform.system() != "Linux":
        return f"CPU kernels are built on Linux only; this is {platform.system()}"
    if _compiler() is None:
        return f"no C++ compiler is on the PATH ({', '.join(_COMPILERS)})"
    if folder() is None:
        return "there is no home folder, and no XDG_CACHE_HOME, to keep compiled kernels in"
    try:
        _loaded(_PROBE)
    except RunError as error:
        return error.line()
    return None


@lru_cache(maxsize=512)
def function(source: str, name: str, *, torch_headers: bool = False) -> Callable[..., None]:
    """A function of the shared object that `source` compiles to.

    torch_headers   whether it includes torch's own
    Raises   RunError with the compiler's first lines when it does not compile.
    """
    symbol = _loaded(source, torch_headers)[name]
    symbol.restype = None
    return symbol


def is_built(source: str, *, torch_headers: bool = False) -> bool:
    """Whether `function` of this source needs no compiler."""
    cache_directory, compiler = folder(), _compiler()
    if cache_directory is None or compiler is None:
        return False
    key = _key(source, compiler, torch_headers)
    return _intact(cache_directory / f"{key}.so", cache_directory / f"{key}.sha256")


def _key(source: str, compiler: str, torch_headers: bool) -> str:
    headers = [] if torch_headers else [sha256_file(header) for header in _HEADERS]
    command = _command(compiler, torch_headers)
    return sha256_value([source, headers, command, _version(compiler), torch.__version__])


def _loaded(source: str, torch_headers: bool = False) -> ctypes.CDLL:
    """The loaded object of `source`: once in a process, since torch ends one that registers an operator twice."""
    key = sha256_value([source, torch_headers])
    if key not in _LOADED:
        path = compiled(source, torch_headers=torch_headers)
        try:
            _LOADED[key] = ctypes.CDLL(str(path))
        except OSError as error:
            raise RunError(f"{path} cannot be loaded: {error}", fix="Delete it") from error
    return _LOADED[key]


def compiled(source: str, *, torch_headers: bool = False) -> Path:
    """The shared object of `source`, compiled now unless it is in the cache; it is not loaded.

    Raises   RunError with the compiler's first lines when it does not compile.
    """
    cache_directory, compiler = folder(), _compiler()
    if cache_directory is None or compiler is None:
        raise RunError(f"CPU kernels cannot be built: {unavailable_reason()}")
    command = _command(compiler, torch_headers)
    key = _key(source, compiler, torch_headers)
    path, receipt = cache_directory / f"{key}.so", cache_directory / f"{key}.sha256"
    if not _intact(path, receipt):
        with file_lock(path.with_suffix(".lock")):  # only one of the processes compiles
            if not _intact(path, receipt):
                seconds = _SECONDS_OF_TORCH if torch_headers else _SECONDS
                _compile(source, command, path, receipt, seconds)
    return path


def _intact(path: Path, receipt: Path) -> bool:
    try:
        private = is_private(path) and is_private(receipt)
        return private and receipt.read_text() == sha256_file(path)
    except (OSError, UnicodeDecodeError):
        return False


def _compile(
    source: str, command: list[str], path: Path, receipt: Path, seconds: int = _SECONDS
) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _clear(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".", suffix=_PART) as temporary:
            text, made = Path(temporary) / "pass.cpp", Path(temporary) / "pass.so"
            text.write_text(source)
            arguments = [command[0], str(text), "-o", str(made), *command[1:]]
            code, stderr = _run(arguments, seconds)
            if code != 0:
                said = stderr.decode(errors="replace").splitlines()
                lines = [line for line in said if "error" in line] or said
                ended = f"signal {-code} ended it" if code < 0 else f"it returned {code}"
                raise RunError(
                    f"{command[0]} does not compile a kernel: {' '.join([ended, *lines[:2]])}"
                )
            receipt_text = sha256_bytes(made.read_bytes())
            made.replace(path)
            (Path(temporary) / "receipt").write_text(receipt_text)
            (Path(temporary) / "receipt").replace(receipt)
    except subprocess.TimeoutExpired as error:
        raise RunError(
            f"a CPU kernel cannot be built: {command[0]} did not end within {seconds} s"
        ) from error
    except OSError as error:
        raise RunError(
            f"a CPU kernel cannot be built in {path.parent}: {error.strerror or error}",
            fix="Make that folder writable, and free disk space there",
        ) from error


def _run(command: list[str], seconds: int) -> tuple[int, bytes]:
    """Exit status and error output; an interrupt also ends the processes of the command."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        _RUNNING.add(process.pid)
        try:
            stderr = process.communicate(timeout=seconds)[1]
        except BaseException:
            _end(process.pid)
            raise
        finally:
            _RUNNING.discard(process.pid)
    return process.returncode, stderr


def end_compilers() -> None:
    """End the compilers of this process that still run, in whichever thread: it exits."""
    for process in tuple(_RUNNING):
        _end(process)


def _end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _clear(directory: Path) -> None:
    """Delete the folders of processes that were killed while they compiled."""
    # By age, not by process: machines that share a home folder cannot see each other's processes.
    for leftover in directory.glob(f".*{_PART}"):
        with contextlib.suppress(OSError):  # another process deletes it, too
            if time.time() - leftover.stat().st_mtime > _ABANDONED:
                shutil.rmtree(leftover)


def folder() -> Path | None:
    """The folder of compiled kernels, or None for a user without a home folder."""
    return cache_folder("fused")


@lru_cache(maxsize=1)
def _compiler() -> str | None:
    return next((path for name in _COMPILERS if (path := shutil.which(name))), None)


@lru_cache(maxsize=4)
def _version(compiler: str) -> str:
    try:
        result = subprocess.run(
            [compiler, "--version"], capture_output=True, timeout=_ASKED, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{compiler} does not report its version: {error}") from error
    return result.stdout.decode(errors="replace")


def content(sources: Sequence[str]) -> list[str]:
    """Key of everything that the speed of these kernels depends on, for `base.autotune`."""
    compiler = _compiler()
    headers = [sha256_file(header) for header in _HEADERS]
    version = "" if compiler is None else _version(compiler)
    return [
        *(sha256_bytes(source.encode()) for source in sources),
        *headers,
        version,
        torch.__version__,
    ]


def processor() -> str:
    """The processor, its vector instructions and the number of threads in use."""
    capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"{cpu_name()}, {capability}, {threads} threads"


def _command(compiler: str, torch_headers: bool) -> list[str]:
    """The compiler and its flags; no flag allows it to reorder sums or to ignore infinities and NaN."""
    home = Path(torch.__file__).parent
    libraries = [f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-ltorch_cpu"]
    shared = [compiler, "-std=c++20", "-w", "-fPIC", "-shared", "-fopenmp"]
    if torch_headers:  # code between torch and the kernels: without vectors, quickly compiled
        return [*shared, "-O1", f"-I{home / 'include'}", *libraries, "-lc10"]
    capability = torch.backends.cpu.get_cpu_capability()
    vectors = _MACHINES.get(capability, "").split()
    if capability == "AVX512":
        vectors.append("-mprefer-vector-width=512")
    return [
        *shared, "-O3", "-fno-math-errno", "-fno-trapping-math", *vectors,
        f"-DSTAMM_CHUNK={CHUNK}", f"-DSTAMM_ROWS={ROWS}", f"-I{_HOME}", *libraries,
    ]  # fmt: skip
