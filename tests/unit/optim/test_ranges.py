"""Numbers of a model and of the mask that no optimizer can repair are refused when they are set."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from stamm.base.errors import ConfigError
from stamm.losses.config import Goldfish
from stamm.models.config import DecoderConfig, Llama3Rope, PlainRope


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DecoderConfig, {"d_model": -4096}, "d_model = -4096 must be at least 1"),
        (DecoderConfig, {"d_model": 0}, "d_model = 0 must be at least 1"),
        (DecoderConfig, {"head_dim": -8}, "head_dim = -8 must be at least 1"),
        (DecoderConfig, {"head_dim": 0}, "head_dim = 0 must be at least 1"),
        (DecoderConfig, {"max_context": 0}, "max_context = 0 must be at least 1"),
        (DecoderConfig, {"norm_eps": math.inf}, "norm_eps = inf must be positive and finite"),
        (DecoderConfig, {"init_std": math.nan}, "init_std = nan must be positive and finite"),
        (PlainRope, {"theta": -1.0}, "theta = -1.0 must lie in [1, inf)"),
        (PlainRope, {"theta": math.nan}, "theta = nan must lie in [1, inf)"),
        (Llama3Rope, {"theta": 0.0}, "theta = 0.0 must lie in [1, inf)"),
        (Llama3Rope, {"factor": 0.0}, "factor = 0.0 must lie in [1, inf)"),
        (Llama3Rope, {"original_context": 0}, "original_context = 0 must be at least 1"),
        (
            Llama3Rope,
            {"low_frequency_factor": -1.0},
            "low_frequency_factor = -1.0 must be positive and finite",
        ),
        (
            Llama3Rope,
            {"high_frequency_factor": math.inf},
            "high_frequency_factor = inf must be positive and finite",
        ),
        (
            Llama3Rope,
            {"high_frequency_factor": 1.0},
            "high_frequency_factor = 1.0 must be above low_frequency_factor = 1.0",
        ),
        (Goldfish, {"salt": -1}, "salt = -1 must lie in [0, 2^64)"),
        (Goldfish, {"salt": 2**64}, "must lie in [0, 2^64)"),
    ],
)
def test_a_number_out_of_range_is_told(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind(**settings)


def test_a_head_width_of_its_own_frees_d_model_from_the_number_of_heads() -> None:
    assert DecoderConfig(d_model=100, num_heads=3, num_kv_heads=1, head_dim=32).head_width == 32


def test_the_largest_salt_is_usable() -> None:
    assert Goldfish(salt=2**64 - 1).salt == 2**64 - 1
