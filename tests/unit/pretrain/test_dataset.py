"""From a packed corpus to tensors: every token's place, document and mask follow from the shards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from stamm.base.errors import ConfigError
from stamm.corpus.config import CorpusConfig, PackConfig
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.tokenizer.config import TokenizerConfig
from stamm.corpus.tokenizer.job import train_tokenizer
from stamm.losses.config import Goldfish
from stamm.losses.goldfish import keep_mask
from stamm.models.config import DecoderConfig
from stamm.optim.schedules import BatchStage
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.dataset import SequenceSampler
from stamm.runs.job import Workspace
from tests.unit.small_corpus import build_corpus, pack_corpus

CONTEXT = 64


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> PackedSplit:
    """Sixty short real sentences' worth of text, packed."""
    root = tmp_path_factory.mktemp("packed")
    source = root / "text.jsonl"
    words = ("river", "stone", "light", "wander", "quiet", "lantern", "maple", "harbour", "signal")
    lines = [
        '{"text": "' + " ".join(words[(i * 7 + j * j) % 9] for j in range(10 + i % 90)) + '"}'
        for i in range(80)
    ]
    source.write_text("\n".join(lines) + "\n")
    (root / "tokenizer").mkdir()
    build_corpus(CorpusConfig(inputs=(str(source),)), root)
    places = {"corpus": root / "corpus", "tokenizer": root / "tokenizer"}
    train_tokenizer(
        TokenizerConfig(vocab_size=360), Workspace(folder=root / "tokenizer", inputs=places)
    )
    return PackedSplit.open(pack_corpus(PackConfig(), root), "train")


def test_targets_follow_inputs_and_every_token_is_read_once(split: PackedSplit) -> None:
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=None)
    batch = windows.batch(0, windows.per_epoch)
    assert (batch.tokens_BT[:, 1:] == batch.target_BT[:, :-1]).all()
    inputs = np.sort(batch.tokens_BT.numpy().ravel())
    assert (inputs == np.sort(split.read(0, windows.per_epoch * CONTEXT))).all()


def test_a_batch_is_the_same_however_it_is_cut(split: PackedSplit) -> None:
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=Goldfish())
    whole = windows.batch(2, 4)
    again = SequenceSampler(split, CONTEXT, seed=1, goldfish=Goldfish())
    for offset in (3, 0, 2, 1):
        one = again.batch(2 + offset, 1)
        assert (one.tokens_BT[0] == whole.tokens_BT[offset]).all()
        assert (one.keep_BT[0] == whole.keep_BT[offset]).all()


def test_the_first_token_of_a_document_is_never_learned(split: PackedSplit) -> None:
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=None)
    batch = windows.batch(0, windows.per_epoch)
    begins = batch.target_BT == 1  # <s>
    assert begins.any()
    assert (batch.keep_BT == ~begins).all()


def test_documents_are_told_apart_by_their_first_token(split: PackedSplit) -> None:
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=None)
    batch = windows.batch(0, windows.per_epoch)
    new = batch.tokens_BT[:, 1:] == 1
    changed = batch.document_BT[:, 1:] != batch.document_BT[:, :-1]
    assert (new == changed).all()


class Numbered:
    """A stream whose every token is its own place; empty documents share their first token."""

    end_id: int | None = None

    def __init__(self, starts: list[int], num_tokens: int) -> None:
        self._starts = np.array(starts, dtype=np.int64)
        self.num_tokens = num_tokens
        self.stages = ((0, num_tokens),)
        self.vocabulary = num_tokens

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Places start .. stop - 1."""
        return np.arange(start, stop)

    def document_starts(self) -> NDArray[np.int64]:
        """What was given."""
        return self._starts


@pytest.mark.parametrize(
    "starts", [[0], [0, 1, 2, 3], [0, 8, 16, 24], [0, 7, 9, 9, 9, 30], [0, 0, 0, 5, 64], [0, 65]]
)
def test_a_token_belongs_to_the_last_document_that_began(starts: list[int]) -> None:
    windows = SequenceSampler(Numbered(starts, 65), 8, seed=1, goldfish=None)
    batch = windows.batch(0, windows.per_epoch)
    places = batch.tokens_BT.numpy()
    assert sorted(places[:, 0].tolist()) == list(range(0, 64, 8))
    owners = [[sum(s <= place for s in starts) for place in row] for row in places.tolist()]
    assert batch.document_BT.tolist() == owners
    begins = np.isin(batch.target_BT.numpy(), starts)
    assert (batch.keep_BT.numpy() == ~begins).all()
    tokens, documents = windows.stream(30)
    assert documents.tolist() == [sum(s <= place for s in starts) for place in tokens.tolist()]
    assert len(tokens) == 30
    assert windows.stream(0)[1].tolist() == []


def test_the_mask_of_a_token_does_not_depend_on_where_a_window_begins(split: PackedSplit) -> None:
    goldfish = Goldfish(k=5, h=12)
    tokens, document = SequenceSampler(split, CONTEXT, 1, None).stream(split.num_tokens)
    expected = keep_mask(goldfish, tokens[1:], document[1:]) & (document[1:] == document[:-1])
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=goldfish)
    batch = windows.batch(0, windows.per_epoch)
    kept = int(batch.keep_BT.sum())
    assert kept == int(expected[: windows.per_epoch * CONTEXT].sum())
    assert kept < batch.keep_BT.numel() - 80


def test_the_published_mask_sees_one_window_at_a_time(split: PackedSplit) -> None:
    goldfish = Goldfish(k=5, h=12, hash="apertus")
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=goldfish)
    batch = windows.batch(0, 3)
    for row in range(3):
        labels = batch.target_BT[row].numpy()
        alone = keep_mask(goldfish, labels, np.zeros_like(labels))
        same = (batch.document_BT[row, 1:] == batch.document_BT[row, :-1]).numpy()
        assert (batch.keep_BT[row].numpy()[:-1] == (alone[:-1] & same)).all()


def test_epochs_have_an_order_of_their_own(split: PackedSplit) -> None:
    windows = SequenceSampler(split, CONTEXT, seed=1, goldfish=None)
    n = windows.per_epoch
    first, second = windows.batch(0, n).tokens_BT, windows.batch(n, n).tokens_BT
    assert (first != second).any()
    assert (np.sort(first.numpy().ravel()) == np.sort(second.numpy().ravel())).all()


SMALL = DecoderConfig(max_context=64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": 128}, "context = 128 exceeds model.max_context = 64"),
        ({"context": 64, "micro_batch": 0}, "micro_batch = 0 must be at least 1"),
        ({"context": 64, "batch": (BatchStage(start=4),)}, "must begin at sequence 0"),
        (
            {"context": 64, "batch": (BatchStage(), BatchStage(start=17, size=32))},
            "changes in the middle of a step",
        ),
        ({"context": 64, "sequences": 3}, "sequences = 3 is less than one step: batch.0.size = 16"),
        ({"context": 64, "sequences": 0}, "sequences = 0 must be at least 1"),
        ({"context": 64, "epochs": math.inf}, "epochs = inf must be positive and finite"),
        ({"context": 64, "epochs": math.nan}, "epochs = nan must be positive and finite"),
        ({"context": 64, "batch": ()}, "batch = () must begin at sequence 0"),
        ({"context": 64, "clip_norm": 0.0}, "clip_norm = 0.0 must lie in"),
    ],
)
def test_impossible_runs_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PretrainConfig(model=SMALL, **changes)  # type: ignore[arg-type]
    assert words in caught.value.line()


def test_a_corpus_smaller_than_a_batch_is_told() -> None:
    config = PretrainConfig(model=SMALL, context=64)
    with pytest.raises(ConfigError, match="fewer than one batch of 16"):
        config.total_sequences(3)
    with pytest.raises(ConfigError, match="run the corpus first"):
        config.total_sequences()
    assert config.total_sequences(100) == 100
