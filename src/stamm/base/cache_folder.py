"""Cache folder for compiled kernels, derived kernels and autotuning results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def cache_folder(name: str) -> Path | None:
    """`stamm/name` in the user's cache folder, or None for a user without a home folder.

    The cache folder is $XDG_CACHE_HOME where that is an absolute path, else ~/.cache; the folder
    need not exist.

    Source   XDG Base Directory Specification 0.8: a relative path is invalid and is ignored
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "stamm" / name
    try:
        return Path.home() / ".cache" / "stamm" / name
    except RuntimeError:
        return None


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` between the processes of one machine; waits for its turn.

    Edge     without file locks, or when `path` cannot be created, nothing is locked: the
             lock only avoids duplicate work, and correctness must not depend on it. The file is
             removed at the end; a process that dies loses its lock.
    """
    if fcntl is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            held = False
            while not held:  # the previous holder may have removed the file
                file = stack.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
                held = path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))
            stack.callback(path.unlink, missing_ok=True)
        yield
