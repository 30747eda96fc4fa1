"""The sparsity ruler: what it skips, what it reaches, and what it refuses. Its numbers: test_outside.py."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.base.errors import ConfigError, DataError
from stamm.models.config import BlockShuffle, DecoderConfig, GatedFFN, PlainFFN, SavePre
from stamm.models.decoder import Decoder, build_decoder
from stamm.observe.ruler import SparsityThresholds, find_thresholds, skipped_units


def small(ffn: PlainFFN | GatedFFN) -> Decoder:
    config = DecoderConfig(
        vocab_size=32, d_model=16, num_layers=2, num_heads=2, ffn=ffn, max_context=64, init_std=0.4
    )
    return build_decoder(config, seed=3)


@torch.no_grad()
def written(decoder: Decoder, seed: int, count: int = 8) -> list[list[int]]:
    """Texts of the model itself, which any change of it makes less likely."""
    drawn = torch.Generator().manual_seed(seed)
    ids = torch.randint(32, (count, 1), generator=drawn)
    for _ in range(40):
        chance = decoder(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chance, 1, generator=drawn)], dim=1)
    return ids.tolist()


def test_the_calibration_text_has_the_perplexity_that_was_asked_for() -> None:
    decoder = small(GatedFFN(width=24))
    text = written(decoder, 1)
    dense = skipped_units(decoder, text, SparsityThresholds(cett=0.0, values=(0.0, 0.0)))
    assert dense.share == 0.0
    shares = []
    for perplexity in (1.01, 1.05):
        found = find_thresholds(decoder, text, perplexity=perplexity)
        skipped = skipped_units(decoder, text, found)
        excess = skipped.loss - dense.loss
        assert excess <= math.log(perplexity)
        assert excess == pytest.approx(math.log(perplexity), rel=0.2)
        shares.append(skipped.share)
    assert 0.0 < shares[0] < shares[1] < 1.0


def test_a_share_is_reached_without_a_perplexity() -> None:
    decoder = small(PlainFFN(width=24, activation="gelu"))
    text = written(decoder, 1)
    for share in (0.25, 0.6):
        found = find_thresholds(decoder, text, share=share)
        assert skipped_units(decoder, text, found).share == pytest.approx(share, abs=5e-3)


def test_units_that_add_nothing_are_skipped_for_free() -> None:
    decoder = small(PlainFFN(width=24, activation="relu"))
    text = written(decoder, 1)
    nothing = SparsityThresholds(cett=0.0, values=(0.0, 0.0))
    skipped = skipped_units(decoder, text, nothing)
    assert 0.2 < skipped.share < 0.8
    with torch.no_grad():
        tokens = torch.tensor(text)
        kept = torch.ones(tokens[:, 1:].shape)
        loss = decoder.losses(tokens[:, :-1], tokens[:, 1:], kept, kept=float(kept.sum())).loss
    assert skipped.loss == pytest.approx(float(loss), abs=1e-6)


def test_a_threshold_skips_what_it_is_for_and_leaves_the_decoder_as_it_was() -> None:
    decoder = small(PlainFFN(width=24, activation="xielu", memory=SavePre()))
    text = written(decoder, 1)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    logits = decoder(torch.tensor(text))
    found = find_thresholds(decoder, text)
    everything = SparsityThresholds(cett=1.0, values=(1e9, 0.0))
    skipped = skipped_units(decoder, text, everything)
    assert skipped.shares == (1.0, 0.0)
    assert skipped.share == 0.5
    assert torch.equal(decoder(torch.tensor(text)), logits)
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())
    assert not any(layer.mlp.act_fn._forward_hooks for layer in decoder.model.layers)
    assert isinstance(decoder.model.layers[0].mlp.memory, SavePre)
    # The same numbers whatever the batches.
    again = find_thresholds(decoder, text, batch_tokens=50)
    assert again.values == pytest.approx(found.values, rel=1e-3)


def test_structured_matrices_are_multiplied_out() -> None:
    decoder = small(GatedFFN(width=32, linear=BlockShuffle(blocks=4)))
    text = written(decoder, 1)
    found = find_thresholds(decoder, text)
    assert skipped_units(decoder, text, found) == skipped_units(decoder.merged(), text, found)
    assert 0.0 < skipped_units(decoder, text, found).share < 1.0


def test_bad_input_is_refused() -> None:
    decoder = small(GatedFFN(width=64))
    text = written(decoder, 1)
    for given in ({"perplexity": 1.0}, {"perplexity": math.nan}, {"share": 0.0}, {"share": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(given))):
            find_thresholds(decoder, text, **given)
    with pytest.raises(DataError, match="40 tokens, and a layer 64 units"):
        find_thresholds(decoder, text[:1])
