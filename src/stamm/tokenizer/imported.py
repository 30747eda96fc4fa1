"""The tokenizer.json of another model: encodes texts without its control tokens.

`Tokenizer` is for vocabularies made by stamm, whose reserved ids are fixed; here control tokens are
those that the file marks as special, and others that a chat template writes. Of tokenizer_config.json
beside it, what changes ids is honoured or refused by name.

Source   transformers 5.23, tokenization_utils_tokenizers.py and tokenization_utils_base.py
Checked  tests/unit/tokenizer/test_imported.py; against transformers in test_imported_ids.py
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from stamm.base.errors import DataError, visible
from stamm.base.files import read_json, sha256_bytes
from stamm.base.json_text import parse_json
from stamm.base.known_keys import KnownKeys, RefusedKey
from stamm.base.receipts import check_file
from stamm.base.sandbox import apart
from stamm.tokenizer.tokenizer import FILE

CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_FIX = "Save the tokenizer again with transformers (a fast tokenizer's save_pretrained)"
_LARGEST = 1 << 28  # bytes of a tokenizer.json
_CPU_S, _MEMORY = 60, 4 << 30
_LARGEST_GROWTH = 64  # characters that replacements may make of one
_PROBE = (
    "".join(map(chr, range(32, 127)))
    + " \t\n\n  \u00e9\u1e9b\u0323\ufdfa\u4e2d\u0939\U0001f98a" * 8
)
_SETTLED: set[str] = set()  # SHA-256 of descriptions that passed their probe in this process
_CASE = RefusedKey(meaning="changes the letters of texts", neutral=(False,))
CONFIG_KEYS = KnownKeys(
    reader=CONFIG,
    read=frozenset(
        {"add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder", "bos_token",
         "eos_token", "unk_token", "pad_token", "chat_template"}
    ),
    harmless=frozenset(
        {
            # other tokens that have a name, and how they are written in a conversation
            "cls_token", "sep_token", "mask_token", "additional_special_tokens", "extra_special_tokens",
            "model_specific_special_tokens", "bos_token_id", "eos_token_id", "pad_token_id",
            "unk_token_id", "image_token", "audio_token", "video_token", "boi_token", "eoi_token",
            "response_template", "response_schema", "use_default_system_prompt",
            # lengths and padding of a batch, which transformers applies on request
            "model_max_length", "max_len", "max_length", "truncation", "truncation_side",
            "truncation_strategy", "stride", "padding", "padding_side", "pad_to_multiple_of",
            "pad_token_type_id", "model_input_names", "return_token_type_ids",
            # the text of ids: they are decoded by the decoder of tokenizer.json
            "clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors",
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            # control tokens in a text always stay text here
            "split_special_tokens",
            # class, files and versions
            "tokenizer_class", "processor_class", "name_or_path", "special_tokens_map_file",
            "tokenizer_file", "vocab_file", "merges_file", "backend", "is_local", "local_files_only",
            "trust_remote_code", "use_fast", "verbose", "legacy", "from_slow", "sp_model_kwargs",
            "transformers_version", "init_inputs", "trim_offsets", "unsloth_version", "commit_hash",
        }
    ),
    refused={
        "auto_map": RefusedKey(meaning="names code of the folder", neutral=({}, [])),
        "fix_mistral_regex": RefusedKey(meaning="replaces the pattern of words", neutral=(False,)),
        **dict.fromkeys(
            ("do_lower_case", "lowercase", "strip_accents", "keep_accents", "remove_space", "normalize",
             "tokenize_chinese_chars"),
            _CASE,
        ),
    },
)  # fmt: skip


class ImportedTokenizer:
    """Encodes and decodes texts; a text never becomes a control token.

    description   the content of a tokenizer.json
    template      a chat template: added tokens whose text occurs in it are control tokens too, but not
                  blanks, which indent it
    config        the content of tokenizer_config.json

    Raises   DataError when it is not a tokenizer, encodes a control token from plain text, puts
             tokens after every text, or needs too much time or memory.
    """

    def __init__(
        self, description: str, template: str = "", config: Mapping[str, Any] | None = None
    ) -> None:
        config = config or {}
        CONFIG_KEYS.check(config)
        try:
            plain = parse_json(description)
            added = list(plain.get("added_tokens") or ())
            for token in added:
                written = token["content"].strip() and token["content"] in template
                token["special"] = bool(token["special"] or written)
            plain.update(added_tokens=added, truncation=None, padding=None)
            cleaned = json.dumps(plain)
        except Exception as error:  # any value may be of another type
            raise _no_tokenizer(error) from None
        for part in ("normalizer", "decoder"):
            growth = _growth(plain.get(part))
            if growth > _LARGEST_GROWTH:
                raise DataError(
                    f"the {part} may make a text {growth:.3g} times as long, more than {_LARGEST_GROWTH} times",
                    fix="Use a tokenizer from a source that you trust",
                )
        names = [token["content"] for token in added if token["special"]]
        _probe(cleaned, names)
        if plain["model"].get("dropout"):
            raise DataError(
                f"dropout = {visible(repr(plain['model']['dropout']), 40)} encodes a text by chance",
                fix="Set it to null in the model of tokenizer.json, where it is not wanted",
            )
        self._tokenizer = tokenizers.Tokenizer.from_str(cleaned)
        self._ids = {token["content"]: int(token["id"]) for token in added if token["special"]}
        self._names = {number: name for name, number in self._ids.items()}
        self.sha256 = sha256_bytes(description.encode())
        self._check(plain["model"])
        _check_blanks(plain, config)
        _check_added(added, config)
        self._prefix = self._find_prefix(config)

    @classmethod
    def load(cls, path: Path, template: str = "") -> ImportedTokenizer:
        """Load a tokenizer.json, or the one in a folder, with tokenizer_config.json beside it.

        Raises   DataError also when a file cannot be read.
        """
        file = path / FILE if path.is_dir() else path
        check_file(file)
        try:
            if file.stat().st_size > _LARGEST:
                raise DataError(f"{file} has more than {_LARGEST >> 20} MiB", fix=_FIX)
            description = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} cannot be read: {error}", fix=_FIX) from None
        try:
            tokenizer = cls(description, template, read_tokenizer_config(file.parent))
            tokenizer._check_added_file(file.parent / ADDED_TOKENS)
        except DataError as error:
            raise DataError(error.what, where=str(file), fix=error.fix) from None
        return tokenizer

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without control tokens."""
        return self.encode_with_spans(text)[0]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the first and last character (exclusive) of each."""
        self._tokenizer.encode_special_tokens = True
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:  # the library takes Unicode alone
            raise DataError("a text contains a lone surrogate, half of a character") from None
        return list(encoding.ids), list(encoding.offsets)

    def prefix_ids(self) -> list[int]:
        """The ids that tokenizer.json puts before every text, such as <s>; [] where it puts none."""
        return list(self._prefix)

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of a text whose control tokens are spelled out, as transformers encodes a template's."""
        self._tokenizer.encode_special_tokens = False
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def control_id(self, token: str) -> int:
        """The id of a control token.

        Raises   KeyError when there is none of this text.
        """
        return self._ids[token]

    def has(self, token: str) -> bool:
        """Whether there is a control token of this text."""
        return token in self._ids

    def control_tokens(self) -> Collection[str]:
        """The texts of all control tokens."""
        return self._ids.keys()

    def control_token(self, token_id: int) -> str | None:
        """The control token of an id; None for an id of text."""
        return self._names.get(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out. Broken UTF-8 becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _check_added_file(self, path: Path) -> None:
        """Check that added_tokens.json, which transformers reads too, has no tokens of its own."""
        added = read_json(path) if path.is_file() else {}
        for text, number in added.items() if isinstance(added, Mapping) else ():
            if self._tokenizer.token_to_id(text) != number:
                raise DataError(
                    f"{ADDED_TOKENS} gives {visible(repr(text), 60)} the id {number}, and {FILE} does not",
                    fix=_FIX,
                )

    def _check(self, model: Mapping[str, Any]) -> None:
        """Raise DataError when the text of a control token is encoded as one; any text may be unknown."""
        unknown = model.get("unk_id", self._ids.get(str(model.get("unk_token"))))
        for name, number in self._ids.items():
            if number != unknown and number in self.encode(name):
                raise DataError(
                    f"the tokenizer encodes {name!r} in a text as a control token", fix=_FIX
                )

    def _find_prefix(self, config: Mapping[str, Any]) -> list[int]:
        """The ids before every text, by tokenizer.json.

        Where tokenizer_config.json differs, so do versions of transformers: 4 follows it for some
        classes, 5 does not.

        Raises   DataError then, and for tokens after every text, which no model continues.
        """
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        marks = list(encoding.special_tokens_mask)
        length = marks.index(0) if 0 in marks else len(marks)
        if length < len(marks) and marks[-1]:
            token = visible(encoding.tokens[-1], 40)
            raise DataError(
                f"{FILE} puts {token!r} after every text, which is not supported",
                fix="Remove it from its post_processor",
            )
        for key, token, does in (
            ("add_bos_token", "bos_token", length > 0),
            ("add_eos_token", "eos_token", False),
        ):
            asked = config.get(key)
            if asked is not None and bool(asked and config.get(token)) != does:
                raise DataError(
                    f"{key} = {visible(repr(asked), 40)} in {CONFIG}, and {FILE} does otherwise",
                    fix="Set it as the model was trained",
                )
        return list(encoding.ids[:length])


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json of a folder, {} without one.

    Tokens that it does not name are those of special_tokens_map.json, which transformers reads where a
    configuration has no added_tokens_decoder.

    Raises   DataError when a file is not a JSON object, or the two name different tokens.
    """
    files = [folder / CONFIG, folder / SPECIAL_TOKENS]
    stored = [read_json(path) if path.is_file() else {} for path in files]
    for path, plain in zip(files, stored, strict=True):
        if not isinstance(plain, dict):
            raise DataError(f"{path} is not a JSON object")
    config: dict[str, Any] = stored[0]
    named: dict[str, Any] = stored[1]
    for key in _NAMED:
        own, other = named_token(config, key), named_token(named, key)
        if own and other and own != other:
            raise DataError(
                f"{key} = {visible(repr(own), 40)} in {CONFIG}, and {visible(repr(other), 40)} in "
                f"{SPECIAL_TOKENS}",
                where=str(folder),
                fix="Write the token that the model was trained with into both",
            )
        if other and not own:
            config[key] = other
    return config


def named_token(config: Mapping[str, Any], key: str) -> str:
    """The text of a token: a string, or an object with its content; "" for none."""
    value = config.get(key)
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else ""


def _probe(description: str, names: Sequence[str]) -> None:
    """Load a tokenizer and encode its control tokens and a text, in a process with bounds.

    Raises   DataError when it fails or needs more.
    """
    key = sha256_bytes(description.encode())
    if key in _SETTLED:
        return

    def work() -> bytes:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where a panic of the library is reported
        try:
            tokenizer = tokenizers.Tokenizer.from_str(description)
        except BaseException as error:  # a panic of the library is not an Exception
            return str(_no_tokenizer(error).what).encode()
        try:
            for special in (True, False):
                tokenizer.encode_special_tokens = special
                for text in (_PROBE, *names):
                    tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            return str(_no_tokenizer(error).what).encode()
        return b""

    answer = apart(work, cpu_s=_CPU_S, memory_bytes=_MEMORY)
    if answer is None:
        raise DataError(
            f"the tokenizer needs more than {_CPU_S} s or {_MEMORY >> 30} GiB for a short text",
            fix="Use a tokenizer from a source that you trust",
        )
    if answer:
        raise DataError(answer.decode(), fix=_FIX)
    _SETTLED.add(key)


def _no_tokenizer(error: BaseException) -> DataError:
    return DataError(f"not a tokenizer: {str(error)[:500]}", fix=_FIX)


def _parts(component: object) -> Iterator[Mapping[str, Any]]:
    """The components of a sequence of a tokenizer.json, or the one."""
    if isinstance(component, Mapping):
        inner = [component.get(key) for key in ("normalizers", "pretokenizers", "decoders")]
        if any(isinstance(parts, list) for parts in inner):
            for parts in inner:
                for part in parts if isinstance(parts, list) else ():
                    yield from _parts(part)
        else:
            yield component


def _growth(component: object) -> float:
    """The largest number of characters that the replacements of a component make of one."""
    growth = 1.0
    for part in _parts(component):
        if part.get("type") == "Prepend":
            growth *= max(1, len(str(part.get("prepend"))) / _LARGEST_GROWTH)
        if part.get("type") != "Replace":
            continue
        pattern, content = part.get("pattern"), str(part.get("content"))
        literal = pattern.get("String") if isinstance(pattern, Mapping) else None
        if isinstance(literal, str) and literal:
            growth *= max(1, len(content) / len(literal))
        else:  # an expression may match one character, or between any two
            growth *= 1 + len(content)
    return min(growth, math.inf)


def _check_blanks(plain: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Check that tokenizer.json puts a blank before texts exactly where the configuration does."""
    asked = config.get("add_prefix_space")
    if asked is None:
        return
    written = [part.get("type") == "Prepend" for part in _parts(plain.get("normalizer"))]
    for part in _parts(plain.get("pre_tokenizer")):
        if part.get("type") == "ByteLevel":
            written.append(bool(part.get("add_prefix_space")))
        elif part.get("type") == "Metaspace":
            scheme = part.get("prepend_scheme", "always")
            written.append(scheme != "never" and part.get("add_prefix_space") is not False)
    if bool(asked) != any(written):
        raise DataError(
            f"add_prefix_space = {asked!r} in {CONFIG}, and {FILE} does otherwise",
            fix="Set it as the model was trained",
        )


def _check_added(added: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> None:
    """Check that the tokens of texts that the configuration adds are those of tokenizer.json."""
    table = config.get("added_tokens_decoder")
    known = {token["content"]: token for token in added}
    for number, token in table.items() if isinstance(table, Mapping) else ():
        if not isinstance(token, Mapping) or token.get("special"):
            continue
        own = known.get(token.get("content"), {})
        given = {"id": int(number) if str(number).isdigit() else number, **token}
        for key in ("id", "content", "lstrip", "rstrip", "single_word", "normalized"):
            if key in given and given[key] != own.get(key):
                raise DataError(
                    f"added_tokens_decoder gives {visible(repr(token.get('content')), 60)} {key} ="
                    f" {visible(repr(given[key]), 40)}, and {FILE} {own.get(key)!r}",
                    fix=_FIX,
                )
