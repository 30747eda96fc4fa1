"""Files beside a chat model: the chat format it was trained with, and where an import came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class ChatModelFile:
    """model/chat.json of a fine-tuned model: the chat format of its training.

    format   name of the chat format: "apertus", "chatml" or "llama3"
    sha256   of all that decides the ids of a conversation
    """

    SCHEMA: ClassVar[int] = 1

    format: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ImportFile:
    """import.json: the Hugging Face folder or GGUF file that a model was imported from.

    folder            name of the folder or file, without its path
    weights_sha256    of its weights; of several files, of their names and hashes
    tokenizer_sha256  of its tokenizer.json
    chat_format       name of its chat format; "" for a base model
    chat_sha256       of all that decides the ids of a conversation; "" for a base model
    quantization      types of the tensors of a GGUF file and their numbers: "9 F32, 14 Q8_0"
    unknown_keys      keys of its files that were not read because their meaning is not known
    """

    SCHEMA: ClassVar[int] = 1

    folder: str
    weights_sha256: str
    tokenizer_sha256: str
    chat_format: str
    chat_sha256: str
    quantization: str = ""
    unknown_keys: Mapping[str, int] = field(default_factory=dict)
