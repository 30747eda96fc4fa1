"""Decoding of several sequences at once gives the logits of whole forward passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stamm.base.errors import ConfigError
from stamm.models.config import (
    BlockDense,
    DecoderConfig,
    GatedFFN,
    LowRank,
    PlainFFN,
    SelfGuide,
    Structured,
)
from stamm.models.decode_step import DecodeStep, run_prompts, stack_weights
from stamm.models.decoder import Decoder, build_decoder
from stamm.models.linear import structured_linears
from stamm.models.lora import add_adapters
from stamm.models.lora_config import Lora

MODELS = {
    "xielu, grouped queries, qk norm": {"ffn": PlainFFN(width=40), "num_kv_heads": 2},
    "swiglu": {"ffn": GatedFFN(width=24), "qk_norm": False, "num_kv_heads": 4},
    "eps": {"ffn": PlainFFN(width=40, compat="eps"), "num_kv_heads": 1},
    "tied, low rank": {"ffn": PlainFFN(width=40, linear=LowRank(rank=8)), "tied_embeddings": True},
    "gated, low rank": {"ffn": GatedFFN(width=24, linear=LowRank(rank=8))},
    "blocks": {"ffn": PlainFFN(width=40, linear=BlockDense(blocks=2, rank=8))},
}


def decoder(**options: object) -> Decoder:
    config = DecoderConfig(
        **{  # type: ignore[arg-type]
            "vocab_size": 61,
            "d_model": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_context": 700,
            "init_std": 0.3,
            **options,
        }
    )
    return build_decoder(config, seed=5).double().for_decoding()


def last_logits(model: Decoder, sequence: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([sequence]))[0, -1]


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(61, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_each_step_gives_the_logits_of_a_whole_pass(name: str) -> None:
    """Rows begin and end at different steps, with prompts shorter and longer than what is cached."""
    model = decoder(**MODELS[name])
    step = DecodeStep(model, 3)
    sequences: list[list[int]] = [[], [], []]

    def begin(row: int, length: int) -> None:
        sequences[row] = tokens(length, seed=length)
        states = run_prompts(model, [tokens(9, seed=1), sequences[row]])
        step.fill(row, states, 1)
        torch.testing.assert_close(states.logits_PV[1], last_logits(model, sequences[row]))

    begins = {0: (0, 5), 3: (1, 300), 40: (2, 1), 200: (0, 2)}
    for turn in range(230):
        if turn in begins:
            begin(*begins[turn])
        if turn == 190:
            step.free(0)
            sequences[0] = []
        new = tokens(3, seed=turn)
        logits = step(torch.tensor(new))
        for row, sequence in enumerate(sequences):
            if sequence:
                sequence.append(new[row])
                if turn % 37 == 0 or turn in begins or turn > 226:
                    torch.testing.assert_close(logits[row], last_logits(model, sequence))
    assert step.lengths == [len(sequence) for sequence in sequences]


def test_kept_rows_go_on_unchanged() -> None:
    model = decoder(ffn=PlainFFN(width=40))
    prompts = [tokens(length, seed=length) for length in (4, 9, 2)]
    step, states = DecodeStep(model, 3), run_prompts(model, prompts)
    for row in range(3):
        step.fill(row, states, row)
    step(torch.tensor([1, 2, 3]))
    step.keep([2, 1])
    logits = step(torch.tensor([5, 6]))
    torch.testing.assert_close(logits[0], last_logits(model, [*prompts[2], 3, 5]))
    torch.testing.assert_close(logits[1], last_logits(model, [*prompts[1], 2, 6]))


def test_packed_matrices_give_the_same_logits() -> None:
    """In float32 the output matrix is large enough to be packed; fewer rows use it, too."""
    model = decoder(ffn=PlainFFN(width=40), vocab_size=2**14).float()
    prompts = [tokens(length, seed=length) for length in (4, 9, 2)]
    step, states = DecodeStep(model, 3), run_prompts(model, prompts)
    for row in range(3):
        step.fill(row, states, row)
    logits = step(torch.tensor([1, 2, 3]))
    for row, prompt in enumerate(prompts):
        expected = last_logits(model, [*prompt, row + 1])
        torch.testing.assert_close(logits[row], expected, rtol=1e-4, atol=1e-5)
    step.keep([2])
    expected = last_logits(model, [*prompts[2], 3, 5])
    torch.testing.assert_close(step(torch.tensor([5]))[0], expected, rtol=1e-4, atol=1e-5)


def test_the_cache_grows_with_the_longest_sequence_alone() -> None:
    """Short completions one after another reuse the columns of those before."""
    model = decoder(ffn=PlainFFN(width=40))
    step, states = DecodeStep(model, 2), run_prompts(model, [tokens(4, seed=1)])
    for turn in range(400):
        if turn % 10 == 0:
            step.fill(turn // 10 % 2, states, 0)
        step(torch.tensor([1, 2]))
    assert step.columns < 250


def test_matrices_of_low_rank_are_decoded_as_factors_and_others_merged() -> None:
    for linear, merged in ((LowRank(rank=8), False), (BlockDense(blocks=2, rank=8), True)):
        model = build_decoder(
            DecoderConfig(
                vocab_size=61, d_model=32, num_layers=2, num_heads=4, ffn=PlainFFN(width=40, linear=linear)
            ),
            seed=5,
        )  # fmt: skip
        first, second = stack_weights(model.for_decoding()).layers
        assert (model.for_decoding() is not model) == merged
        assert first.rank == 0  # kept dense
        assert (second.rank, len(second.up), second.width) == ((0, 1, 40) if merged else (8, 2, 40))


def test_guides_of_a_model_in_training_are_not_decoded() -> None:
    ffn = PlainFFN(width=40, linear=LowRank(rank=8))
    model = decoder(ffn=ffn, structured=Structured(guide=SelfGuide())).train()
    sequence = tokens(7, seed=1)
    expected = last_logits(model.for_decoding(), sequence)
    model.add_guides()
    for _, linear in structured_linears(model):
        linear.guided = True
        torch.nn.init.normal_(linear.guide)
    assert not torch.allclose(last_logits(model, sequence), expected)
    torch.testing.assert_close(last_logits(model.for_decoding(), sequence), expected)


def test_adapters_must_be_merged() -> None:
    model = decoder(ffn=PlainFFN(width=40))
    add_adapters(model, Lora(rank=2))
    with pytest.raises(ConfigError, match="LoraLinear"):
        DecodeStep(model, 1)
