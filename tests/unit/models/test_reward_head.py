"""The reward head: a product at one token of each answer."""

from __future__ import annotations

import torch

from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_blank, build_decoder
from stamm.models.reward_head import RewardHead

MODEL = DecoderConfig(
    vocab_size=16, d_model=32, num_layers=1, num_heads=2, ffn=PlainFFN(width=48), max_context=8
)


def test_a_reward_is_the_product_at_its_token_and_0_without_one() -> None:
    head = RewardHead(4)
    hidden = torch.arange(24.0).reshape(6, 4)
    answer = torch.tensor([-1, 2, -1, 0, -1, -1])
    assert torch.equal(head(hidden, answer, 3), torch.zeros(3, dtype=torch.float64))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([1.0, 0.0, 0.0, -2.0]))
    found = head(hidden, answer, 3)
    assert found.tolist() == [12 - 30, 0.0, 4 - 14]
    found[2].backward()
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, hidden[1])
    # Also without any of its tokens in this process there is a graph for the backward pass.
    head(hidden, torch.full((6,), -1), 3).sum().backward()


def test_a_blank_decoder_gets_the_head_of_a_whole_one() -> None:
    blank, whole = build_blank(MODEL), build_decoder(MODEL, 1)
    blank.add_reward_head()
    whole.add_reward_head()
    blank.to_empty(device="cpu")
    head = blank.reward_head
    assert head is not None
    with torch.no_grad():
        head.weight.fill_(7.0)
    blank.initialise(1)
    for name, parameter in whole.named_parameters():
        assert torch.equal(blank.get_parameter(name), parameter), name
        assert parameter.requires_grad == (name != "lm_head.weight")
