"""Open a model: its decoder, its tokenizer, and how texts and conversations become its token ids.

model = open_model("runs/demo", "xielu")
ids = model.chat.encode(conversation, prompt=True).ids
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import ConfigError, DataError
from stamm.base.files import read_json
from stamm.base.known_keys import UnknownKeys
from stamm.chat.conversation import AssistantTurn, Conversation, Response, UserTurn
from stamm.chat.formats import ChatFormat
from stamm.models.config import DecoderConfig
from stamm.models.decoder import Decoder
from stamm.models.hf_chat_format import AnyTokenizer, folder_chat
from stamm.models.hf_files import TOKENIZER, end_ids, unused_keys
from stamm.models.hub_folder import load_hub, load_hub_config
from stamm.models.model_source import ModelSource, find_model
from stamm.models.serialization import load_decoder, stored_config
from stamm.runs.model_outputs import read_chat_record
from stamm.tokenizer.imported import CONFIG as TOKENIZER_CONFIG
from stamm.tokenizer.imported import (
    CONFIG_KEYS,
    ImportedTokenizer,
    named_token,
    read_tokenizer_config,
)
from stamm.tokenizer.special_tokens import BEGIN_ID, END_ID


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A model in memory that reads text.

    decoder       float32, on the CPU, in evaluation mode
    tokenizer     encodes plain text; a text never becomes a control token
    prefix        ids before every text: <s> for a tokenizer of stamm's; of another model, what its
                  tokenizer.json adds
    begin         id before a text without a context; None where the tokenizer names no such token
    stop_ids      tokens that end a text: the tokenizer's, those of the chat format, and those that the
                  files of another model name for generation
    chat_format   None where it is not known
    sha256        of the weights; of a Hugging Face folder with several files, of their hashes
    """

    decoder: Decoder
    tokenizer: AnyTokenizer
    prefix: tuple[int, ...]
    begin: int | None
    stop_ids: frozenset[int]
    chat_format: ChatFormat | None
    sha256: str

    @property
    def chat(self) -> ChatFormat:
        """The chat format.

        Raises   ConfigError where none is known
        """
        if self.chat_format is None:
            raise ConfigError(
                "chat = True, and no chat format is known for this tokenizer", fix="Set chat=false"
            )
        return self.chat_format

    def context_ids(self, context: str) -> list[int]:
        """The ids of a context; never empty.

        Raises   ConfigError for an empty context where the tokenizer names no token to begin with.
        """
        return [*self.prefix, *self.tokenizer.encode(context)] or [self._begin()]

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of a context and of its continuation, split as lm-evaluation-harness does.

        White space at the end of the context belongs to the continuation. Both are encoded as one
        text, and the continuation has the ids beyond the number of those of the context alone, so
        it never changes the context's. Where that leaves none, it is encoded by itself.

        Source   EleutherAI/lm-evaluation-harness, lm_eval/api/model.py: TemplateLM._encode_pair
        Checked  tests/unit/evaluate/test_scoring.py::test_the_boundary_is_that_of_the_harness
        """
        kept = context.rstrip()
        continuation, context = context[len(kept) :] + continuation, kept
        first = self.tokenizer.encode(context) if context else []
        whole = self.tokenizer.encode(context + continuation)
        rest = whole[len(first) :] or self.tokenizer.encode(continuation)
        return [*self.prefix, *first] or [self._begin()], rest

    def chat_ids(self, examples: Sequence[tuple[str, str]], question: str) -> list[int]:
        """The ids of a conversation that ends where the assistant begins to answer `question`.

        examples   earlier questions and answers

        Raises     ConfigError without a chat format.
        """
        turns: list[UserTurn | AssistantTurn] = []
        for asked, answer in examples:
            turns += [UserTurn(asked), AssistantTurn((Response(answer.strip()),))]
        turns.append(UserTurn(question))
        return self.chat.encode(Conversation(turns=tuple(turns)), prompt=True).ids

    def _begin(self) -> int:
        if self.begin is None:
            raise ConfigError(
                "a text without a context is scored, and the tokenizer names no begin-of-text token",
                fix=f"Name bos_token or eos_token in {TOKENIZER_CONFIG}",
            )
        return self.begin


def open_model(
    source: str | os.PathLike[str] | ModelSource, arm: str | None = None, *, chat: bool = False
) -> OpenModel:
    """The model at a place, as of `find_models`, with its tokenizer and chat format.

    source   a folder, or a model that was found
    arm      of a run folder with several arms
    chat     whether it must have a chat format, and the one that it was fine-tuned with

    Memory   the decoder, and one tensor while it is read
    Raises   what `find_model` raises; DataError when files are damaged or do not match their recorded
             SHA-256, when the model has fewer ids than the tokenizer, and for what `chat` asks
    """
    if not isinstance(source, ModelSource):
        source = find_model(source, arm)
    encoding = folder_chat(source.tokenizer)
    if chat:
        _check_chat(source, encoding[1])
    decoder = load_hub(source.model) if source.kind == "hub" else load_decoder(source.model)
    return _joined(decoder, source.tokenizer, source.weights_sha256, *encoding)


def with_tokenizer(decoder: Decoder, folder: Path, sha256: str = "") -> OpenModel:
    """A decoder in memory with the tokenizer in `folder`.

    sha256   of its weights

    Raises   DataError when a file of the tokenizer is damaged, or has more ids than the decoder
    """
    return _joined(decoder, folder, sha256, *folder_chat(folder))


def config_of(source: ModelSource) -> DecoderConfig:
    """The configuration of the decoder of a source, without its weights.

    Raises   DataError for a file that does not describe a decoder of stamm's
    """
    if source.kind == "hub":
        return load_hub_config(source.model)
    return stored_config(source.model)


def check_vocabulary(config: DecoderConfig, size: int, where: Path) -> None:
    """Check that the decoder has an embedding for each id of a tokenizer of `size` ids.

    Raises   DataError with both numbers.
    """
    if config.vocab_size < size:
        raise DataError(
            f"the tokenizer has {size} ids, and the model {config.vocab_size}",
            where=str(where / TOKENIZER),
            fix="Use the tokenizer that the model was trained with",
        )


def unused_of(
    source: Path, unknown_keys: Sequence[str] | None = None
) -> tuple[UnknownKeys, list[str]]:
    """The unknown keys of a model's files, and sentences about what is not used.

    source         a Hugging Face folder, or a GGUF file
    unknown_keys   of a GGUF file

    Raises   DataError when a file of the folder is not a JSON object.
    """
    unknown, sentences = UnknownKeys(), list[str]()
    if unknown_keys is not None:
        unknown.add(unknown_keys)
    else:
        unknown, sentences = unused_keys(source)
        if (source / TOKENIZER_CONFIG).is_file():
            unknown.add(CONFIG_KEYS.unknown(read_json(source / TOKENIZER_CONFIG)))
    named = unknown.sentence(str(source))
    return unknown, [*sentences, *([named] if named else [])]


def _joined(
    decoder: Decoder,
    folder: Path,
    sha256: str,
    tokenizer: AnyTokenizer,
    chat: ChatFormat | DataError,
) -> OpenModel:
    check_vocabulary(decoder.config, tokenizer.size, folder)
    chat_format = None if isinstance(chat, DataError) else chat
    prefix = [BEGIN_ID]
    begin: int | None = BEGIN_ID
    end: int | None = END_ID
    if isinstance(tokenizer, ImportedTokenizer):
        prefix, config = tokenizer.prefix_ids(), read_tokenizer_config(folder)
        begin, end = (
            tokenizer.control_id(text) if tokenizer.has(text) else None
            for text in (named_token(config, "bos_token"), named_token(config, "eos_token"))
        )
        begin = prefix[-1] if prefix else end if begin is None else begin
    stops = {end, *end_ids(folder), *(chat_format.stop_ids if chat_format else ())}
    return OpenModel(
        decoder=decoder,
        tokenizer=tokenizer,
        prefix=tuple(prefix),
        begin=begin,
        stop_ids=frozenset(number for number in stops if number is not None),
        chat_format=chat_format,
        sha256=sha256,
    )


def _check_chat(source: ModelSource, chat: ChatFormat | DataError) -> None:
    """Check that a model has a chat format, and the one that it was fine-tuned with."""
    if isinstance(chat, DataError):
        raise chat
    trained = read_chat_record(source.model)
    if trained is not None and trained.sha256 != chat.sha256:
        raise DataError(
            f"the model was fine-tuned with the chat format {trained.format} {trained.sha256[:12]}, "
            f"and its tokenizer has {chat.name} {chat.sha256[:12]}",
            where=str(source.tokenizer),
            fix="Use the tokenizer, and the version of stamm, that it was trained with",
        )
