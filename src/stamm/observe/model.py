"""Observe the feed-forward layers of a decoder on token sequences, with one backward pass."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stamm.base.console import Progress
from stamm.base.errors import ConfigError, DataError
from stamm.base.files import has_ending, sha256_file
from stamm.base.json_text import parse_json
from stamm.corpus.documents import whole_text
from stamm.corpus.packed_dataset import MANIFEST, PackedSplit
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines
from stamm.models.decoder import Decoder
from stamm.models.padding import length_batches, padded
from stamm.observe.config import ObserveConfig
from stamm.observe.records import LayerObservation
from stamm.observe.statistics import LayerStatistics
from stamm.observe.taps import Hook, tapped

_LINE_BYTES = 16 * 2**20
_EXPANSION = 1000
Encode = Callable[[str], list[int]]


@dataclass(frozen=True, kw_only=True)
class ObservedText:
    """Token sequences with what precedes them, at most one context each.

    name        of the file, or "held-out split"
    documents   texts that the sequences are of
    """

    name: str
    sequences: tuple[list[int], ...]
    documents: int

    @property
    def tokens(self) -> int:
        """Tokens that layers see: all but the last of each sequence."""
        return sum(len(sequence) - 1 for sequence in self.sequences)


def text_sha256(config: ObserveConfig, pack: Path | None) -> str:
    """SHA-256 of the file of texts, or of the manifest of the packed corpus.

    Raises   ConfigError when there is neither; DataError when the file is missing.
    """
    if config.text is None:
        if pack is None:
            raise ConfigError(
                "the model has no held-out text",
                fix='Name a file with text=FILE: a .txt file, or JSONL with "text"',
            )
        return sha256_file(pack / MANIFEST)
    if not Path(config.text).is_file():
        raise DataError(f"{config.text} is not a file", where="text")
    return sha256_file(Path(config.text))


def packed_text(
    config: ObserveConfig,
    pack: Path,
    context: int,
    split: str = "held_out",
    most_contexts: int | None = None,
) -> ObservedText:
    """The contexts of the documents of a split, in the order of hashed identifiers.

    most_contexts   of one document; None: all

    Raises   DataError when the packed corpus has no document of two tokens in that split.
    """
    packed = PackedSplit.open(pack, split)
    documents = sorted(
        packed.documents().to_pylist(),
        key=lambda row: hashlib.sha256(row["document_id"].encode()).hexdigest(),
    )
    longest = None if config.tokens is None else config.tokens + 1
    spans = ((row["start"], row["stop"]) for row in documents)
    texts = (
        packed.read(start, stop if longest is None else min(stop, start + longest)).tolist()
        for start, stop in spans
    )
    name = f"{split.replace('_', '-')} split"
    text = _contexts(name, texts, context, config.tokens, most_contexts)
    if not text.sequences:
        raise DataError(
            f"the packed corpus holds no document in its split {split}",
            fix="Set corpus.held_out above 0, or name a file with text=FILE",
        )
    return text


def text_of_file(
    config: ObserveConfig,
    path: Path,
    encode: Encode,
    prefix: Sequence[int],
    context: int,
    most_contexts: int | None = None,
) -> ObservedText:
    """The contexts of the texts of a file, in its order.

    prefix          ids before every text
    most_contexts   of one text; None: all

    Raises   DataError when the file cannot be read, or has no text of two tokens.
    """
    texts = ([*prefix, *encode(text)] for text in _texts(path))
    text = _contexts(path.name, texts, context, config.tokens, most_contexts)
    if not text.sequences:
        raise DataError(f"{path} holds no text", fix='Name a .txt file, or JSONL with "text"')
    return text


def _contexts(
    name: str, texts: Iterator[list[int]], context: int, tokens: int | None, most: int | None
) -> ObservedText:
    """The first context of every text, then the second ones, and so on, up to `tokens` tokens.

    A context is `context` + 1 ids, the last of which is predicted and begins the next context.
    """
    sequences: list[list[int]] = []
    budget = sys.maxsize if tokens is None else tokens
    waiting = deque[tuple[int, list[int]]]()  # contexts taken of a text, and its ids after them
    documents = 0

    def add_context(number: int, ids: list[int]) -> None:
        nonlocal budget
        sequences.append(ids[: min(context, budget) + 1])
        budget -= len(sequences[-1]) - 1
        rest = ids[context : context + budget + 1]
        if len(rest) > 1 and number + 1 != most:
            waiting.append((number + 1, rest))

    for ids in texts:
        if len(ids) < 2:
            continue
        documents += 1
        add_context(0, ids)
        if not budget:
            break
    while waiting and budget:
        add_context(*waiting.popleft())
    return ObservedText(name=name, sequences=tuple(sequences), documents=documents)


def _texts(path: Path) -> Iterator[str]:
    if has_ending(path.name, (".txt", ".md")):
        try:
            yield path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        return
    with BoundedStream(path, _EXPANSION) as stream:
        try:
            for line in bounded_lines(stream, _LINE_BYTES):
                if not line.data.strip():
                    continue
                try:
                    row = parse_json(line.data.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise DataError(f"line {line.number} of {path} is not JSON: {error}") from None
                text = row.get("text") if isinstance(row, dict) else None
                if not isinstance(text, str):
                    raise DataError(
                        f'line {line.number} of {path} is not a JSON object with "text"',
                        fix="Correct it, or name a .txt file",
                    )
                yield whole_text(text)
        except StreamError as stopped:
            raise DataError(
                f"{path} is cut or damaged: {stopped.detail}", fix="Get the file again"
            ) from None


def observe_layers(
    config: ObserveConfig, decoder: Decoder, text: ObservedText, progress: Progress
) -> tuple[LayerObservation, ...]:
    """The statistics of every layer of `decoder` on `text`.

    The loss whose gradient is observed is the sum of the nats of all tokens after the first of each
    sequence. Gradients of weights are not computed.

    Raises   DataError when a pre-activation or an output is not finite.
    """
    recorder = _Recorder(decoder)
    progress.begin("layers", text.tokens, "tokens")
    done = 0
    with recorder.recording():
        lengths = [len(sequence) - 1 for sequence in text.sequences]
        for rows in length_batches(lengths, config.batch_tokens):
            batch = [text.sequences[row] for row in rows]
            recorder.add(batch)
            done += sum(len(sequence) - 1 for sequence in batch)
            progress.advance(done)
    progress.end(f"{text.tokens:,} tokens")
    return tuple(layer.result() for layer in recorder.layers)


class _Recorder:
    """Hooks in a decoder that add what passes to statistics."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._real_BT = torch.zeros(0, 0, dtype=torch.bool)
        self.layers: list[LayerStatistics] = []
        self._hooks: dict[str, Hook] = {}
        for index, layer in enumerate(decoder.model.layers):
            block: Any = layer.mlp
            width = decoder.config.ffn_of(index).width
            statistics = LayerStatistics(index, block.act_fn, width)
            self.layers.append(statistics)
            self._hooks[f"layers.{index}.mlp.act_fn"] = partial(self._features, statistics)
            self._hooks[f"layers.{index}"] = partial(self._residual, statistics)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """A context in which `add` adds to the statistics."""
        with tapped(self._decoder, self._hooks):
            # Gradients flow from the embeddings on, although no weight needs one.
            embedding = self._decoder.model.embed_tokens
            handle = embedding.register_forward_hook(lambda _m, _i, out: out.requires_grad_())
            try:
                yield
            finally:
                handle.remove()

    def add(self, sequences: Sequence[Sequence[int]]) -> None:
        """A forward and a backward pass; rows are padded on the right, which causal attention ignores."""
        tokens_BT, own_BT = padded(sequences)
        self._real_BT = own_BT[:, 1:]
        with torch.enable_grad():
            loss = self._decoder.losses(
                tokens_BT[:, :-1], tokens_BT[:, 1:], self._real_BT.float(), kept=1.0
            ).loss
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def _features(self, into: LayerStatistics, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x_NC = inputs[0].detach()[self._real_BT]
        y_NC = output.detach()[self._real_BT]
        if not (torch.isfinite(x_NC).all() and torch.isfinite(y_NC).all()):
            raise DataError(
                f"layer {into.layer} has activations that are not finite",
                fix="The model diverged, or its weights are damaged",
            )
        into.add_features(x_NC, y_NC)
        inputs[0].register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda gradient: into.add_gradients(x_NC, gradient[self._real_BT])
        )

    def _residual(self, into: LayerStatistics, inputs: Any, output: Tensor) -> None:
        into.add_residual(output.detach()[self._real_BT])
