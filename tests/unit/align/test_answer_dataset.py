"""Answers as examples: every one once per epoch, packed whole, and apart from each other."""

from __future__ import annotations

import math

import pytest
import torch

from stamm.align.data.encoded import EncodedAnswer
from stamm.align.training.answer_dataset import AnswerSequences
from stamm.align.training.chat_dataset import epoch_order
from stamm.base.errors import DataError
from stamm.models.config import DecoderConfig, PlainFFN
from stamm.models.decoder import build_decoder

PAD, CONTEXT, V = 3, 32, 61
DECODER = build_decoder(
    DecoderConfig(
        vocab_size=V, d_model=32, num_layers=2, ffn=PlainFFN(width=48), max_context=CONTEXT,
        init_std=0.3,
    ),
    seed=5,
)  # fmt: skip


def answer(example: int, role: str, length: int, seed: int, references: int = 2) -> EncodedAnswer:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, V, (length,), generator=draw).tolist()
    return EncodedAnswer(
        example=example,
        role=role,
        ids=ids,
        supervised=[place >= length // 2 for place in range(length)],
        prompt_tokens=length // 2,
        reward=float(seed),
        ref_rewards=tuple(range(references)),
    )


def pairs() -> list[EncodedAnswer]:
    lengths = [(9, 14), (20, 5), (12, 12), (33, 2), (7, 8)]
    return [
        answer(number, role, length, 10 * number + place, references=number)
        for number, both in enumerate(lengths)
        for place, (role, length) in enumerate(zip(("chosen", "rejected"), both, strict=True))
    ]


def sequences(answers: list[EncodedAnswer], *, paired: bool = True) -> AnswerSequences:
    reference = [-float(number) for number in range(len(answers))]
    return AnswerSequences(answers, reference, paired=paired, context=CONTEXT, seed=7, pad=PAD)


def test_an_epoch_has_every_example_once_and_each_epoch_its_own_order() -> None:
    first, second = epoch_order(0, 50, 50, 7), epoch_order(50, 50, 50, 7)
    assert sorted(first) == sorted(second) == list(range(50))
    assert list(first) != list(second)
    assert list(epoch_order(45, 10, 50, 7)) == [*first[45:], *second[:5]]


def test_a_batch_has_whole_pairs_with_their_numbers() -> None:
    data = sequences(pairs())
    assert data.per_epoch == 5
    batch = data.batch(0, 5)
    order = epoch_order(0, 5, 5, 7)
    expected = [each for place in order for each in pairs()[2 * place : 2 * place + 2]]
    assert batch.num_examples == batch.loss_count == 5
    assert batch.length_B.tolist() == [sum(each.supervised[1:]) for each in expected]
    assert batch.reward_B.tolist() == [each.reward for each in expected]
    assert batch.reference_B.tolist() == [-float(2 * p + k) for p in order for k in (0, 1)]
    for number, each in enumerate(expected):
        row, columns = torch.where(batch.completion_RT == number)
        assert len(set(row.tolist())) == 1
        learned = [i for i, s in zip(each.ids[1:], each.supervised[1:], strict=True) if s]
        assert batch.target_RT[row, columns].tolist() == learned
        known = [x for x in batch.ref_reward_BN[number].tolist() if not math.isnan(x)]
        assert tuple(known) == each.ref_rewards
    assert data.num_tokens(0, 5) == sum(len(each.ids) - 1 for each in pairs())
    assert data.num_tokens(3, 4) == data.num_tokens(3, 2) + data.num_tokens(5, 2)


def test_single_answers_are_examples_of_their_own() -> None:
    data = sequences(pairs(), paired=False)
    assert data.per_epoch == 10
    assert sorted(data.batch(0, 10).reward_B.tolist()) == sorted(
        each.reward or 0.0 for each in pairs()
    )


@torch.no_grad()
def test_answers_of_one_row_do_not_change_a_bit_of_each_other() -> None:
    data = sequences(pairs())
    batch = data.batch(0, 5)
    shared = [row for row in range(batch.num_rows) if batch.document_RT[row].max() >= 2]
    row = shared[0]
    tokens, document = batch.tokens_RT[row : row + 1], batch.document_RT[row : row + 1]
    whole = DECODER(tokens, document)
    for number in range(int(document.max())):
        changed = tokens.clone()
        others = (document != number) & (tokens != PAD)
        changed[others] = (changed[others] + 17) % V
        assert not torch.equal(changed, tokens)
        inside = document[0] == number
        assert torch.equal(DECODER(changed, document)[0, inside], whole[0, inside])


def test_answers_that_are_not_pairs_are_refused() -> None:
    alone = pairs()[:3]
    with pytest.raises(
        DataError, match="example 1 has the answers chosen, not chosen and rejected"
    ):
        sequences(alone)
    with pytest.raises(DataError, match="example 0 has two chosen answers"):
        sequences([alone[0], alone[0]])


def test_an_answer_longer_than_a_row_is_refused() -> None:
    with pytest.raises(DataError, match="an answer has 40 tokens with its prompt, and sequences"):
        sequences([answer(0, "rated", 41, 1)], paired=False)


def test_short_data_in_a_long_context_is_not_padded_to_it() -> None:
    def rows(context: int, count: int) -> torch.Size:
        data = AnswerSequences(pairs(), None, paired=True, context=context, seed=7, pad=PAD)
        shapes = {data.batch(first, count).tokens_RT.shape for first in range(5)}
        assert len(shapes) == 1  # a compiled step has one shape
        return shapes.pop()

    assert rows(4096, 1) == (1, 64)  # at most 33 tokens
    assert rows(4096, 3) == (1, 128)  # at most 22 + 33 + 23
    assert rows(40, 1) == (1, 40)
    padded = AnswerSequences(pairs(), None, paired=True, context=4096, seed=7, pad=PAD, padded=True)
    assert padded.batch(0, 1).tokens_RT.shape == (1, 4096)
    batches = [
        AnswerSequences(pairs(), None, paired=True, context=c, seed=7, pad=PAD).batch(0, 5)
        for c in (128, 4096)
    ]
    assert torch.equal(batches[0].tokens_RT, batches[1].tokens_RT)
