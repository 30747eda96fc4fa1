"""Cache folder for compiled kernels, derived kernels and autotuning results.

What is in it is executed. So the folder, and each file that is loaded from it, belongs to this user or to
root, and no other user can write to it; otherwise a private folder of this process takes its place.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stamm.base.console import Console
from stamm.base.errors import visible

try:
    import fcntl
    import grp
    import pwd
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def cache_folder(name: str) -> Path | None:
    """`stamm/name` in the user's cache folder, or None for a user without a home folder.

    The cache folder is $XDG_CACHE_HOME where that is an absolute path, else ~/.cache; the folder
    need not exist.

    Edge     where others could write to it, a temporary folder of this process, with a warning
    Source   XDG Base Directory Specification 0.8: a relative path is invalid and is ignored
    Checked  tests/unit/base/test_cache_folder.py
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    folder = base / "stamm" / name
    open_to_others = [path for path in (base, base / "stamm", folder) if not is_private(path)]
    return _private_folder(name, open_to_others[0]) if open_to_others else folder


def is_private(path: Path) -> bool:
    """Whether only this user and root can write to a file or a folder; also when it does not exist.

    Edge     a group that has this user's name and no other member is the user
    """
    try:
        state = path.stat()
    except OSError:
        return True
    if fcntl is None:
        return True
    if state.st_uid not in (0, os.geteuid()) or state.st_mode & stat.S_IWOTH:
        return False
    return not state.st_mode & stat.S_IWGRP or _is_own_group(state.st_gid)


def _is_own_group(number: int) -> bool:
    try:
        group, name = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and set(group.gr_mem) <= {name}


@functools.cache
def _private_folder(name: str, open_to_others: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"stamm-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Console().log(
        f"{open_to_others} is not used as a cache, because it belongs to another user or others can write "
        f"to it: kernels are compiled again for this process. `chmod go-w {open_to_others}` if it is yours."
    )
    return folder


def lock_holders(path: Path) -> str:
    """The processes with a lock on `path`: " (process 12: stamm evaluate runs/a)"; "" if unknown.

    Source   proc_locks(5): a line for each lock, with the process, and the device and inode of the file
    """
    shown = []
    with contextlib.suppress(OSError, ValueError):
        state = path.stat()
        device = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        numbers = {int(words[4]) for words in lines if words[1] == "FLOCK" and words[5] == device}
        for number in sorted(numbers - {os.getpid(), 0, -1}):
            line = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
            words = [Path(word).name if word.startswith("/") else word for word in line.split("\0")]
            shown.append(f"process {number}: {visible(' '.join(words).strip(), 120)}")
    return f" ({', '.join(shown)})" if shown else ""


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
                with contextlib.suppress(FileNotFoundError):
                    held = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            stack.callback(path.unlink, missing_ok=True)
        yield
