"""A tokenizer as GGUF holds it: llama.cpp's kind "gpt2", byte-level BPE. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.errors import ExportError
from stamm.base.files import read_json

TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED, _UNUSED = 1, 3, 4, 5  # enum llama_token_type
_STEPS = ("normalizer", "pre_tokenizer")  # of a tokenizer.json that turn a text into bytes


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A tokenizer as GGUF holds it.

    pre        name of llama.cpp's rule that cuts texts into words
    tokens     of each id, normal ones in the byte alphabet; types: enum llama_token_type
    add_begin  whether <s> is put before a text
    ends       ids that end a text or an answer; the first is that of a text
    template   chat template, "" for a base model
    json       the content of tokenizer.json, for readers that cut texts by its pattern
    """

    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    begin: int
    pad: int
    add_begin: bool
    ends: Sequence[int]
    template: str = ""
    json: str = ""


def read_bpe(file: Path, vocab_size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges of a tokenizer.json, filled up to `vocab_size` tokens.

    Raises   ExportError when it is not a byte-level BPE, or has more tokens than the model.
    """
    plain = read_json(file)
    model = plain.get("model") or {}
    affixes = model.get("end_of_word_suffix") or model.get("continuing_subword_prefix")
    by_bytes = any(_has_step(plain.get(name), "ByteLevel") for name in _STEPS)
    merged = model.get("type") == "BPE" and bool(model.get("merges"))
    if not (merged and by_bytes) or affixes or model.get("byte_fallback"):
        raise ExportError(
            f"{file} is not a byte-level BPE tokenizer, the only kind that is written as GGUF",
            fix="Choose another target with export.target",
        )
    known = {int(number): text for text, number in model["vocab"].items()}
    kinds = dict.fromkeys(known, TOKEN_NORMAL)
    for token in plain.get("added_tokens") or ():
        known[int(token["id"])] = token["content"]
        kinds[int(token["id"])] = TOKEN_CONTROL if token["special"] else TOKEN_USER_DEFINED
    if max(known) >= vocab_size:
        raise ExportError(f"{file} has an id {max(known)}, and the model has {vocab_size} ids")
    tokens = [known.get(number, f"[PAD{number}]") for number in range(vocab_size)]
    types = [kinds.get(number, _UNUSED) for number in range(vocab_size)]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return tokens, types, merges


def _has_step(step: object, kind: str) -> bool:
    """Whether a part of a tokenizer.json is a step of this type, or a sequence with one."""
    if isinstance(step, Mapping):
        inner = (step.get("pretokenizers"), step.get("normalizers"))
        return step.get("type") == kind or any(_has_step(inner_step, kind) for inner_step in inner)
    return isinstance(step, list) and any(_has_step(inner_step, kind) for inner_step in step)
