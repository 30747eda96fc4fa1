"""Manifest of a run: command, commit, library versions, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from stamm.base.files import sha256_bytes, sha256_file, sha256_value
from stamm.base.processor import cpu_capability, cpu_name
from stamm.version import PACKAGE, VERSION

SCHEMA = 1
RATES = "rates.json"  # in log/ of a run: seconds of each part of its sharded steps
MANIFEST_FIX = "Delete it and repeat the same `stamm run`: finished steps are kept"
_LIBRARIES = (
    "torch", "numpy", "transformers", "safetensors", "tokenizers", "resiliparse",
    "duckdb", "fasttext-numpy2", "fasttext-numpy2-wheel", "pycld2", "phonenumbers", "cachetools", "idna", "tiktoken", "pyarrow", "zstandard", "sympy", "mpmath", "jinja2", "matplotlib",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions, commit and hardware of this machine; nothing secret."""
    versions = library_versions()
    return {
        "version": VERSION,
        **source_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "capability": cpu_capability(),
        "cores": os.cpu_count(),
        "libraries": versions,
        "lock_hash": sha256_value(versions),
    }


def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that a run can depend on ("missing" where absent)."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return versions


def source_state() -> dict[str, Any]:
    """The commit of the checkout, and a hash of its uncommitted changes and untracked files.

    Both are None for an installed package without a checkout, or without git.
    """
    root = PACKAGE.resolve().parents[1]
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    commit = _git(root, "rev-parse", "HEAD")
    patch = _git(root, "diff", "HEAD") or b""
    untracked = (_git(root, "ls-files", "--others", "--exclude-standard", "-z") or b"").split(b"\0")
    for name in sorted(name for name in untracked if name):
        path = root / os.fsdecode(name)
        patch += name + (sha256_file(path).encode() if path.is_file() else b"")
    return {
        "commit": commit.decode().strip() if commit else None,
        "dirty": sha256_bytes(patch)[:16] if patch else None,
    }


def new_manifest(**facts: Any) -> dict[str, Any]:
    """A manifest: the given facts, the environment, and the start time (UTC)."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "schema": SCHEMA,
        **facts,
        "command": ["stamm", *sys.argv[1:]],
        "started": started,
        **environment(),
    }


def _git(root: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
