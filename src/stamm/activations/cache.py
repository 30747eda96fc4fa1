"""Cache of kernels for specs that do not ship, by content hash: SymPy derives each of them once.

A derived kernel is stored in the home folder; a module written by `stamm derive` contains its own.
The first line of a stored file holds the SHA-256 of the rest and of the code that derived it, so
a damaged file or one from an older stamm is never run, nor is one that another user could have written.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from stamm.base.cache_folder import cache_folder, is_private
from stamm.base.console import Console
from stamm.base.errors import ConfigError, RunError
from stamm.base.files import sha256_bytes, sha256_value, write_text
from stamm.version import VERSION

_HERE = Path(__file__).parent
_PRIMITIVES = tuple((_HERE / "primitives").glob("*.py"))
_HASH = re.compile(r"[0-9a-f]{64}")
_HEADER = re.compile(r"# stamm kernel: sha256 ([0-9a-f]{64}), derived by ([0-9a-f]{64})")
_REGISTERED: dict[str, str] = {}
_JUDGED: set[str] = set()


def kernel_folder() -> Path | None:
    """The folder of derived kernels, or None for a user without a home folder."""
    return cache_folder("kernels")


def known_kernel_source(content_hash: str) -> str | None:
    """The kernel of a spec as text: registered in this process, else stored, else None."""
    return _REGISTERED.get(content_hash) or cached_kernel_source(content_hash)


def cached_kernel_source(content_hash: str) -> str | None:
    """The stored kernel of the spec with this hash, or None when no valid one is stored.

    Edge     a damaged file, or one that stamm did not write, is ignored with a warning; one from an
             older version of the derivation code is ignored and will be overwritten.
    Raises   ConfigError when `content_hash` is not a SHA-256.
    Checked  tests/unit/activations/test_cache.py
    """
    path = _path(content_hash)
    if path is None:
        return None
    if not is_private(path):
        _say_ignored(path, "it belongs to another user, or others can write to it")
        return None
    try:
        first, _, source = path.read_bytes().decode().partition("\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        _say_ignored(path, str(error))
        return None
    header = _HEADER.fullmatch(first)
    if header is None:
        _say_ignored(path, "it was not written by stamm")
    elif sha256_bytes(source.encode()) != header[1]:
        _say_ignored(path, "its text does not match the hash in its first line")
    elif not _belongs(source, content_hash):
        _say_ignored(path, "it holds the kernel of another spec")
    elif header[2] == deriver():
        return source
    return None


def store_kernel_source(content_hash: str, source: str) -> Path | None:
    """Store a derived kernel atomically; None where the home folder cannot be written.

    Raises   ConfigError when `source` is not the kernel of the spec with this hash.
    """
    _check_belongs(content_hash, source)
    path = _path(content_hash)
    if path is None:
        return None
    digest = sha256_bytes(source.encode())
    try:
        write_text(path, f"# stamm kernel: sha256 {digest}, derived by {deriver()}\n{source}")
    except (OSError, RunError):
        return None
    return path


def register_kernel_source(content_hash: str, source: str, *, primitives: str = "") -> bool:
    """Register the kernel of a spec in this process; returns whether it will be used.

    primitives   the `primitives_hash` that the kernel was derived for; when it is given and differs
                 from that of the installed stamm, the kernel is derived again, with a warning
    Raises       ConfigError when `source` is not the kernel of the spec with this hash.
    """
    _check_belongs(content_hash, source)
    if primitives and primitives != primitives_hash():
        Console().log(
            f"the kernel of {content_hash[:12]} was derived by another version of stamm and is"
            " derived again. `stamm derive` writes a new module file."
        )
        return False
    _REGISTERED[content_hash] = source
    if primitives:  # a module that `stamm derive` wrote, after it had judged the kernel
        _JUDGED.add(content_hash)
    return True


def record_judged(content_hash: str) -> None:
    """Record in this process and the home folder that a spec's kernel met its error budgets."""
    _JUDGED.add(content_hash)
    path = _path(content_hash)
    if path is not None:
        with contextlib.suppress(OSError, RunError):
            write_text(path.with_suffix(".judged"), f"{deriver()}\n")


def is_judged(content_hash: str) -> bool:
    """Whether this version of the derivation checked the kernel against its error budgets.

    Checked  tests/unit/activations/test_reachable.py
    """
    if content_hash in _JUDGED:
        return True
    path = _path(content_hash)
    try:
        judged = path is not None and path.with_suffix(".judged").read_text() == f"{deriver()}\n"
    except (OSError, UnicodeDecodeError):
        return False
    return judged


@lru_cache(maxsize=1)
def primitives_hash() -> str:
    """SHA-256 of the functions that every kernel calls."""
    return _hash(_PRIMITIVES)


@lru_cache(maxsize=1)
def deriver() -> str:
    """SHA-256 of the derivation and code generation, which decide the text of a kernel."""
    makers = ((_HERE / folder).glob("*.py") for folder in ("derivation", "codegen"))
    return _hash([*itertools.chain(*makers), *_PRIMITIVES])


def _hash(files: Iterable[Path]) -> str:
    return sha256_value(
        {f.relative_to(_HERE).as_posix(): sha256_bytes(f.read_bytes()) for f in files}
    )


def _path(content_hash: str) -> Path | None:
    if not _HASH.fullmatch(content_hash):
        raise ConfigError(f"{content_hash!r} is not a SHA-256 in hexadecimal")
    folder = kernel_folder()
    return None if folder is None else folder / f"{VERSION}-{content_hash}.py"


def _belongs(source: str, content_hash: str) -> bool:
    return f'\nCONTENT_HASH = "{content_hash}"\n' in source


def _check_belongs(content_hash: str, source: str) -> None:
    if not _HASH.fullmatch(content_hash) or not _belongs(source, content_hash):
        raise ConfigError(f"the text is not the kernel of the spec {content_hash[:12]!r}")


def _say_ignored(path: Path, why: str) -> None:
    Console().log(f"{path} is not used: {why}. The kernel is derived again.")
