"""The machine's memory, as a container may limit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stamm.base import processor


@pytest.mark.parametrize(
    ("limit", "expected"), [("1048576\n", 2**20), ("max\n", None), (str(2**60), None), (None, None)]
)
def test_the_limit_of_a_container_counts(
    limit: str | None, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        assert path == Path("/sys/fs/cgroup/memory.max")
        if limit is None:
            raise FileNotFoundError(path)
        return limit

    lines = Path("/proc/meminfo").read_text().splitlines()
    installed = 1024 * next(int(n.split()[1]) for n in lines if n.startswith("MemTotal"))
    monkeypatch.setattr(Path, "read_text", read)
    assert processor.memory_bytes() == (expected or installed)
