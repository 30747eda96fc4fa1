"""The protocol of an export target: a file format or engine that a model is written for.

A target is a class with a `name` and the methods `check`, `write` and `load`; it may be a built-in
(stamm.export.registry) or a user's own, "mine.py:MyTarget". What else a target may have is a protocol
of its own here: options, weight types, chat formats, reward models, a plan. The parity report, samples
and model card are common to all targets. Tutorial: docs/extending/export_target.md
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
    rounded       the weights are rounded: held-out bits per byte are the gate, not logits, as of all
                  types but F32
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

    quantization      type of the matrices, one of the target's (QuantizedTarget)
    max_shard_bytes   largest file of weights
    chat_format       of the model's training, "apertus", "chatml", "llama3" or "template"; "": it was not fine-tuned
    texts             held-out texts, for choices of the tokenizer
    pre_tokenizer     the choice, where it was made before; "": it is made with `texts`
    """

    quantization: str = "F32"
    max_shard_bytes: int = 5_000_000_000
    chat_format: str = ""
    texts: Sequence[str] = ()
    pre_tokenizer: str = ""

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
class QuantizedTarget(Protocol):
    """An export target that has other types of matrices than F32; `configure` sets one.

    quantizations   of all but F32, held-out bits per byte are the gate, not logits
    """

    quantizations: Sequence[str]


@runtime_checkable
class SettingsTarget(Protocol):
    """An export target that does not read all settings of ExportOptions.

    unread   names of ExportConfig's fields; one that is set is an error
    """

    unread: Sequence[str]


@runtime_checkable
class TokenizerTarget(Protocol):
    """An export target that cannot hold every tokenizer."""

    def tokenizer_problem(self, file: Path, vocab_size: int) -> str:
        """The reason why a tokenizer.json cannot be exported; "" when none is known.

        vocab_size   of the model
        """


@runtime_checkable
class RewardTarget(Protocol):
    """An export target whose folder is one of transformers, to which a reward head can be added."""

    def reward_class(self, model: Decoder) -> str:
        """The class of transformers that holds the model with its head.

        Raises   ExportError where there is none.
        """


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """Bytes that a target writes and needs.

    files       weights by file, without headers and the tokenizer
    engine      the exported weights in their engine
    converted   whether a tensor is copied to be written
    """

    files: Mapping[str, int]
    engine: int
    converted: bool


@runtime_checkable
class PlannedTarget(Protocol):
    """An export target that can give its bytes before it writes."""

    def plan(self, model: Decoder) -> TargetPlan:
        """The plan for a decoder with dense matrices, which has no values (device "meta")."""


@runtime_checkable
class TargetSupport(Protocol):
    """Checks of a recipe before training. A built-in target has a class of its own for them, without torch.

    The other protocols of ExportConfig's settings and of the tokenizer belong to it as well.
    """

    name: str

    def check(self, config: DecoderConfig) -> Sequence[str]:
        """As ExportTarget.check."""


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


def greedy_tokens(
    prompt: Sequence[int],
    new_tokens: int,
    next_token: Callable[[list[int]], int],
    is_end: Callable[[int], bool],
) -> list[int]:
    """At most `new_tokens` tokens after `prompt` in an engine with a KV cache, until one that ends a text.

    next_token   the most likely token after all given so far: the prompt first, then one token a call
    """
    written, new = list[int](), list(prompt)
    while len(written) < new_tokens and not (written and is_end(written[-1])):
        written.append(next_token(new))
        new = written[-1:]
    return written
