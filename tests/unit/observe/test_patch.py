"""Activation patching: both ways to compute a cell equal a forward pass of its own; metrics by hand."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN, Recompute
from stamm.models.decoder import Decoder, build_decoder
from stamm.observe.patch import PatchGrid, cell_logits, patch_grid

CLEAN, CORRUPTED = [1, 5, 9, 20, 33, 2, 7], [1, 5, 11, 20, 40, 2, 8]
PLAIN = DecoderConfig(
    vocab_size=64, d_model=16, num_layers=3, num_heads=2, max_context=16, init_std=0.2,
    ffn=PlainFFN(width=24, activation="xielu", memory=Recompute()),
)  # fmt: skip
GATED = replace(
    PLAIN, num_heads=4, num_kv_heads=2, ffn=GatedFFN(width=24, activation="swiglu"), num_layers=2
)


def one_forward_a_cell(decoder: Decoder) -> Tensor:
    """Logits of every cell, (L, T, V), with plain hooks of torch."""
    layers = decoder.model.layers
    states: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda _m, _i, out: states.append(out)) for layer in layers
    ]
    decoder(torch.tensor([CLEAN]))
    for handle in handles:
        handle.remove()
    found = torch.zeros(len(layers), len(CLEAN), decoder.config.vocab_size)
    for layer, position in itertools.product(range(len(layers)), range(len(CLEAN))):

        def patch(_m: Any, _i: Any, out: Tensor, at: int = position, of: int = layer) -> Tensor:
            out = out.clone()
            out[:, at] = states[of][:, at]
            return out

        handle = layers[layer].register_forward_hook(patch)
        found[layer, position] = decoder(torch.tensor([CORRUPTED]))[0, -1]
        handle.remove()
    return found


@pytest.mark.parametrize("config", [PLAIN, GATED])
@pytest.mark.parametrize("shared", [False, True])
@torch.no_grad()
def test_every_cell_is_a_forward_pass_with_one_state_replaced(
    config: DecoderConfig, shared: bool
) -> None:
    """Would catch a wrong layer, position, mask or KV cache, and a cell that is left out or doubled."""
    decoder = build_decoder(config, seed=3).train()
    expected = one_forward_a_cell(decoder)
    seen = []
    for cells, logits in cell_logits(decoder, CLEAN, CORRUPTED, shared=shared):
        for cell, logits_V in zip(cells, logits, strict=True):
            seen.append(cell)
            torch.testing.assert_close(logits_V, expected[cell], rtol=0, atol=1e-5)
    assert sorted(seen) == list(itertools.product(range(config.num_layers), range(len(CLEAN))))
    assert decoder.training and decoder.model.layers[0].mlp.memory == config.ffn.memory  # type: ignore[union-attr]


@torch.no_grad()
def test_metrics_are_those_of_their_formulas() -> None:
    decoder = build_decoder(PLAIN, seed=3)
    cells = one_forward_a_cell(decoder).double()
    clean, corrupted = (decoder(torch.tensor([ids]))[0, -1].double() for ids in (CLEAN, CORRUPTED))
    right, wrong = int(clean.argmax()), int(corrupted.argmax())
    assert right != wrong
    found = patch_grid(decoder, CLEAN, CORRUPTED)
    assert found.answers == (right, wrong)
    d = cells[..., right] - cells[..., wrong]
    low, high = corrupted[right] - corrupted[wrong], clean[right] - clean[wrong]
    torch.testing.assert_close(found.values, (d - low) / (high - low), rtol=1e-4, atol=1e-4)
    assert found.clean == pytest.approx(1.0)
    assert found.corrupted == pytest.approx(0.0, abs=1e-9)
    # Behind the last layer the last position alone is read.
    assert found.values[-1, -1] == pytest.approx(1.0, abs=1e-4)
    assert found.values[-1, :-1].abs().max() < 1e-4
    found = patch_grid(decoder, CLEAN, CORRUPTED, "probability", answers=(4, 5))
    expected = cells[..., 4].exp() / cells.exp().sum(-1)
    torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-6)
    found = patch_grid(decoder, CLEAN, CORRUPTED, "kl")
    p = clean.exp() / clean.exp().sum()
    q = cells.exp() / cells.exp().sum(-1, keepdim=True)
    torch.testing.assert_close(found.values, (p * (p / q).log()).sum(-1), rtol=1e-3, atol=1e-6)
    assert found.clean == 0.0 < found.corrupted


def test_the_picture_shows_the_values() -> None:
    """Would catch a cell drawn elsewhere: the blue of a restored cell is at its layer and position."""
    values = torch.zeros(3, 7, dtype=torch.float64)
    values[2, 5] = 1.0
    grid = PatchGrid(metric="kl", values=values, clean=1.0, corrupted=0.0, answers=(1, 2))
    pixels = plt_image(grid.picture([*"abcdef", "$<b>&"]))
    rows, columns = np.nonzero((pixels[..., 2] > 0.55) & (pixels[..., 0] < 0.2))
    height, width = pixels.shape[:2]
    assert 0.6 < columns.mean() / width < 0.85 and rows.mean() / height < 0.45
    assert len(rows) > 1000


def plt_image(png: bytes) -> np.ndarray[Any, Any]:
    image: np.ndarray[Any, Any] = matplotlib.image.imread(io.BytesIO(png))
    return image


@pytest.mark.parametrize(
    ("clean", "corrupted", "settings", "why"),
    [
        ([1, 2], [1], {}, "the prompts have 2 and 1 tokens, and max_context is 16"),
        ([], [], {}, "the prompts have 0 and 0 tokens"),
        ([1] * 17, [2] * 17, {}, "the prompts have 17 and 17 tokens"),
        ([1, 64], [1, 2], {}, "token 64 is not one of the model's 64"),
        ([1, 3], [1, 2], {"answers": (1, -1)}, "token -1 is not one"),
        ([1, 2], [1, 2], {}, r"both prompts have the logit difference .* Name answers="),
        ([1, 3], [1, 2], {"metric": "loss"}, "metric = 'loss'. Use one of logit_difference, kl"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(
    clean: list[int], corrupted: list[int], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        patch_grid(build_decoder(PLAIN, seed=3), clean, corrupted, **settings)
    assert "\n" not in str(raised.value)
