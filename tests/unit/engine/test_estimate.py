"""What a plan says about memory and devices."""

from __future__ import annotations

import pytest

from stamm.base.errors import ConfigError
from stamm.engine.estimate import checkpoint_bytes, estimate_memory, parse_devices
from stamm.models.config import DecoderConfig
from stamm.models.count import count_parameters
from stamm.optim.config import AdamW, AdEMAMix

MODEL = DecoderConfig()


def test_devices_are_read() -> None:
    devices = parse_devices("1024xgh200")
    assert (devices.count, devices.name) == (1024, "GH200")
    assert devices.peak_flops == 1024 * 989e12


@pytest.mark.parametrize("text", ["H200", "0xH200", "8xH2000", "-1xH200", "8 H200"])
def test_what_is_no_device_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="Known: A100"):
        parse_devices(text)


def test_parts_of_memory() -> None:
    n = count_parameters(MODEL).total
    wide = estimate_memory(MODEL, AdEMAMix(), 2, 16, "float32")
    mixed = estimate_memory(MODEL, AdamW(), 2, 16, "bfloat16")
    assert (wide.weights, wide.master_weights, wide.moments) == (4 * n, 0, 12 * n)
    assert (mixed.weights, mixed.master_weights, mixed.moments) == (2 * n, 4 * n, 8 * n)
    assert mixed.activations * 2 == wide.activations
    assert estimate_memory(MODEL, AdamW(), 4, 16, "float32").activations == 2 * wide.activations
    assert wide.total == sum(
        (wide.weights, wide.gradients, wide.master_weights, wide.moments, wide.activations)
    )
    assert checkpoint_bytes(MODEL, AdEMAMix()) == 16 * n
