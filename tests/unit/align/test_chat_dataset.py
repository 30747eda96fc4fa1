"""Training sequences of conversations: nothing cut, nothing leaks, nothing but answers is learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stamm.align.training.chat_dataset import ChatWindows, best_fit, copy_numbers
from stamm.base.errors import DataError
from stamm.chat.render import EncodedChat
from stamm.models.config import DecoderConfig
from stamm.models.decoder import build_decoder

PAD = 3


def chats(count: int, seed: int = 0, longest: int = 12) -> list[EncodedChat]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(random.integers(2, longest + 1))
        ids = random.integers(10, 50, size).tolist()
        found.append(EncodedChat(ids, [False, *(random.random(size - 1) < 0.5).tolist()]))
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=60), st.integers(20, 30))
def test_every_length_is_placed_once_and_bins_are_not_overfull(
    lengths: list[int], capacity: int
) -> None:
    bins = best_fit(lengths, capacity)
    assert sorted(i for each in bins for i in each) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in each) <= capacity for each in bins)
    # two bins are never both at most half full
    assert sum(2 * sum(lengths[i] for i in each) <= capacity for each in bins) <= 1


def test_too_long_is_an_error() -> None:
    with pytest.raises(DataError, match="21 tokens, sequences have 20"):
        best_fit([3, 21], 20)


def test_an_epoch_holds_every_conversation_once_and_whole() -> None:
    data = chats(40)
    windows = ChatWindows(data, 16, seed=5, pad=PAD)
    for epoch in range(2):
        batch = windows.batch(epoch * windows.per_epoch, windows.per_epoch)
        seen = []
        for row in range(windows.per_epoch):
            document = batch.document_BT[row]
            for number in range(int(document.max()) + 1):
                inside = document == number
                tokens, target = batch.tokens_BT[row][inside], batch.target_BT[row][inside]
                if (tokens == PAD).all():
                    assert not batch.keep_BT[row][inside].any()
                    continue
                ids = [int(tokens[0]), *target.tolist()]
                assert ids[:-1] == tokens.tolist()
                seen.append((ids, [False, *batch.keep_BT[row][inside].tolist()]))
        assert sorted(seen) == sorted((chat.ids, chat.supervised) for chat in data)


def test_no_sequence_has_two_copies_of_a_conversation() -> None:
    data = [chat for chat in chats(20) for _ in range(3)]
    copies = copy_numbers(data)
    assert copies == [0, 1, 2] * 20
    windows = ChatWindows(data, 64, seed=5, pad=PAD, copies=copies)
    batch = windows.batch(0, windows.per_epoch)
    seen = 0
    for tokens, document in zip(batch.tokens_BT, batch.document_BT, strict=True):
        inside = [tokens[document == number].tolist() for number in range(int(document.max()) + 1)]
        found = [tuple(ids) for ids in inside if set(ids) != {PAD}]
        assert len(set(found)) == len(found)
        seen += len(found)
    assert seen == len(data)


def test_epochs_differ_in_order_and_a_place_has_one_sequence() -> None:
    windows = ChatWindows(chats(60), 16, seed=5, pad=PAD)
    first = windows.batch(0, windows.per_epoch).tokens_BT
    second = windows.batch(windows.per_epoch, windows.per_epoch).tokens_BT
    assert not torch.equal(first, second)
    assert torch.equal(windows.batch(3, 2).tokens_BT, first[3:5])


def test_another_conversation_in_the_sequence_changes_no_bit() -> None:
    config = DecoderConfig(vocab_size=64, d_model=32, num_layers=2, num_heads=2, num_kv_heads=1)
    decoder = build_decoder(config, seed=1)
    data = chats(2, longest=8)
    other = [data[0], EncodedChat([i + 1 for i in data[1].ids], data[1].supervised)]
    logits = []
    for each in (data, other):
        batch = ChatWindows(each, 16, seed=0, pad=PAD).batch(0, 1)
        with torch.no_grad():
            logits.append(decoder(batch.tokens_BT, batch.document_BT)[0])
    document = batch.document_BT[0]
    assert torch.equal(logits[0][document == 0], logits[1][document == 0])
    assert not torch.equal(logits[0][document == 1], logits[1][document == 1])


def test_without_conversations_it_is_one_line() -> None:
    with pytest.raises(DataError, match="no conversation to train on"):
        ChatWindows([], 16, 0, PAD)


def test_short_data_in_a_long_context_is_not_padded_to_it() -> None:
    few = ChatWindows(chats(5), 4096, seed=5, pad=PAD)
    assert few.batch(0, 1).tokens_BT.shape == (1, 64)
    assert few.batch(0, 0).tokens_BT.shape == (1, 64)  # a process without a share
    assert ChatWindows(chats(40), 16, seed=5, pad=PAD).batch(0, 1).tokens_BT.shape == (1, 16)
