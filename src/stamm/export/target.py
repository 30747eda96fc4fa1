"""The protocol of an export target: a file format or engine that a model is written for.

A target is a class with a `name` and the methods `check`, `write` and `load`; it may be a built-in
(stamm.export.registry) or a user's own, "mine.py:MyTarget". The parity report, samples and model
card are common to all targets. Tutorial: docs/extending/export_target.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stamm.models.config import DecoderConfig

if TYPE_CHECKING:  # a recipe checks its export target without loading torch
    from torch import Tensor

    from stamm.models.decoder import Decoder

    Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class CardText:
    """A target's part of the model card.

    library        `library_name` of the Hub's front matter; "" leaves it out
    architecture   name of the class that loads the folder; "" leaves it out
    usage          Markdown that shows how the folder is loaded
    """

    library: str = ""
    architecture: str = ""
    usage: str = ""


@dataclass(frozen=True, kw_only=True)
class LoadedExport:
    """An exported model as its own engine loads it.

    description   engine, version and class, for the parity report: "transformers 5.1.0 ..."
    logits        token ids (B, T) to logits of the next token (B, T, V), float32
    encode        text to token ids with <s>, and `decode` back: compared with the tokenizer.
                  None: the target has no tokenizer
    generate      (prompt, number of new tokens) to new tokens, greedy decoding: writes samples.json.
                  None: no samples
    encode_chat   (messages, whether a prompt) to token ids, by the engine's chat template: compared
                  with the chat format. None: the target has no chat template
    references    further originals to compare `logits` with, by a remark for the report
    rounded       the weights are rounded: held-out bits per byte are the gate, not logits
    token_limit   largest share of held-out tokens that `encode` may give otherwise
    remarks       sentences about the written weights, for the log, the report and the model card
    card          the target's part of the model card
    """

    description: str
    logits: Logits
    encode: Callable[[str], list[int]] | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    generate: Callable[[Sequence[int], int], list[int]] | None = None
    encode_chat: Callable[[Sequence[Mapping[str, Any]], bool], list[int]] | None = None
    references: Mapping[str, Logits] = field(default_factory=dict)
    rounded: bool = False
    token_limit: float = 0.0
    remarks: Sequence[str] = ()
    card: CardText = field(default_factory=CardText)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export target.

    quantization      type of the matrices, one of `runtime_support.FORMATS`
    max_shard_bytes   largest file of weights
    chat_format       of the model's training, "apertus", "chatml", "llama3" or "template"; "": it was not fine-tuned
    texts             held-out texts, for choices of the tokenizer
    """

    quantization: str = "F32"
    max_shard_bytes: int = 5_000_000_000
    chat_format: str = ""
    texts: Sequence[str] = ()

    @property
    def chat(self) -> bool:
        """Whether the model has the chat format of its tokenizer."""
        return bool(self.chat_format)


@runtime_checkable
class OptionsTarget(Protocol):
    """An export target with options; its name may depend on them."""

    def configure(self, options: ExportOptions) -> None:
        """Set the options, before any other method is called."""


@runtime_checkable
class ChatTarget(Protocol):
    """An export target that can hold a chat format."""

    def write_chat(self, folder: Path, tokenizer: Path, max_context: int) -> None:
        """Add the chat format to a folder that `ExportTarget.write` has written.

        tokenizer   a tokenizer.json; that of an imported model has its template beside it
        """


@runtime_checkable
class ExportTarget(Protocol):
    """An export target.

    name   of the folder that is written, export/NAME: lower-case letters, digits and _
    """

    name: str

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """The reasons why a model cannot be exported, as sentences; none when it can."""

    def write(self, folder: Path, model: Decoder, tokenizer: Path) -> None:
        """Write the model into `folder`, which exists and is empty.

        model       a decoder with dense matrices, float32
        tokenizer   a tokenizer.json
        """

    def load(self, folder: Path) -> LoadedExport:
        """Load what `write` wrote, for the parity report."""
