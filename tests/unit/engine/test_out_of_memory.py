"""Out of memory is one line with the remedies; other errors stay as they are."""

from __future__ import annotations

import pytest
import torch

from stamm.base.errors import RunError
from stamm.engine.out_of_memory import out_of_memory_explained


def test_out_of_memory_is_explained_in_one_line() -> None:
    for ask in (lambda: torch.empty(2**50, dtype=torch.float64), lambda: bytearray(2**62)):
        with (
            pytest.raises(RunError, match=r"out of memory: .*micro_batch") as raised,
            out_of_memory_explained(),
        ):
            ask()
        assert "\n" not in raised.value.line()
    with pytest.raises(RuntimeError, match=r"^other$"), out_of_memory_explained():
        raise RuntimeError("other")
