"""The chat format and tokenizer of a folder: a run's, or the one that a Hugging Face folder's template has.

A folder's template is recognised by the control tokens that it writes; it is then rendered on probe
conversations, in a sandbox with bounds on time and memory, and the text and the ids must be those of
our own encoder. Any other template is rendered for every conversation (`TemplateFormat`), or refused where
its loss mask cannot be proved.

Checked  tests/unit/models/test_hf_chat_format.py, tests/unit/align/test_template_format.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.sandbox import apart
from stamm.chat.chatml_llama3 import SYNTAXES, TurnFormat, TurnSyntax, default_traits
from stamm.chat.conversation import THINK, Conversation
from stamm.chat.formats import ApertusFormat, ChatFormat, chat_template
from stamm.chat.render import (
    ASSISTANT_END,
    ASSISTANT_START,
    SYSTEM_END,
    SYSTEM_START,
    render,
    text_of,
)
from stamm.chat.template_files import TEMPLATE, folder_template
from stamm.chat.template_format import TOOL_CASES, GenerationSpanError, TemplateFormat
from stamm.chat.template_sandbox import Rendered, render_all
from stamm.chat.template_traits import cases, find_traits, verify
from stamm.models.hf_files import end_ids
from stamm.tokenizer.imported import (
    ImportedTokenizer,
    named_token,
    read_tokenizer_config,
)
from stamm.tokenizer.tokenizer import FILE, Tokenizer

_CPU_S, _MEMORY = 10, 1 << 30
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_EMPTY_SYSTEM = SYSTEM_START + SYSTEM_END
_SYSTEM = re.compile(re.escape(SYSTEM_START) + ".*?" + re.escape(SYSTEM_END), re.DOTALL)


AnyTokenizer = Tokenizer | ImportedTokenizer


@dataclass(frozen=True)
class FolderChat:
    """Chat format and tokenizer of a folder."""

    chat: ChatFormat
    tokenizer: AnyTokenizer


def load_chat_format(folder: Path) -> ChatFormat:
    """The chat format of a folder with tokenizer.json, as `load_folder_chat`."""
    return load_folder_chat(folder).chat


def load_folder_chat(folder: Path) -> FolderChat:
    """The chat format and the tokenizer of a folder with tokenizer.json: the Apertus format for a run of
    stamm's, and for others the one that their template has.

    Raises   DataError when a file cannot be read, or the chat format is not supported.
    """
    tokenizer, chat = folder_chat(folder)
    if isinstance(chat, DataError):
        raise chat
    return FolderChat(chat, tokenizer)


def folder_chat(folder: Path) -> tuple[AnyTokenizer, ChatFormat | DataError]:
    """The tokenizer of a folder with tokenizer.json, and its chat format, or why it is not supported.

    Raises   DataError when the tokenizer or its template cannot be read.
    """
    template = folder_template(folder)
    if not template or template == chat_template():
        try:  # a tokenizer of stamm's
            own = Tokenizer.load(folder)
        except DataError:
            if not (folder / FILE).is_file():
                raise
        else:
            return own, ApertusFormat(own, own.sha256)
    tokenizer = ImportedTokenizer.load(folder, template)
    try:
        return tokenizer, _imported_chat(tokenizer, template, folder)
    except DataError as error:
        return tokenizer, error


def _imported_chat(tokenizer: ImportedTokenizer, template: str, folder: Path) -> ChatFormat:
    config = read_tokenizer_config(folder)
    known = {name for name in _known_starts() if tokenizer.has(name)}
    written = {name for name in known if not template or name in template}
    tokens = {name: text for name in _TOKENS if (text := named_token(config, name))}
    if len(written) != 1:
        if not template:
            raise _unrecognised(folder)
        _render(template, tokens, folder)  # with bounds on time and memory
        return _any_template(tokenizer, template, tokens, folder)
    (start,) = written
    # The published Apertus template writes today's date into a system message that is not compared.
    names = {**tokens, "strftime_now": str} if start == ASSISTANT_START else tokens
    rendered = _render(template, names, folder) if template else None
    if start == ASSISTANT_START:
        return _apertus(tokenizer, rendered)
    syntax = next(candidate for candidate in SYNTAXES if candidate.start == start)
    ends = [tokens.get("eos_token", ""), *map(tokenizer.control_token, end_ids(folder))]
    whole: TemplateFormat | None = None
    try:
        whole = _any_template(tokenizer, template, tokens, folder) if template else None
    except GenerationSpanError:
        raise
    except DataError:  # the format by turns remains
        pass
    try:
        return _turns(syntax, tokenizer, rendered, template, tokens, [*filter(None, ends)], whole)
    except DataError:
        if whole is None:
            raise
        return whole


def _any_template(
    tokenizer: ImportedTokenizer, template: str, tokens: Mapping[str, str], folder: Path
) -> TemplateFormat:
    """The format of a template by rendering it.

    Raises   DataError when its loss mask cannot be proved
    """
    ends = [tokens.get("eos_token", ""), *map(tokenizer.control_token, end_ids(folder))]
    try:
        return TemplateFormat(
            tokenizer,
            tokenizer_sha256=tokenizer.sha256,
            template=template,
            names=tokens,
            end_tokens=[*filter(None, ends)],
            pad_token=tokens.get("pad_token", ""),
        )
    except DataError as error:
        where = f"the chat template of {folder}"
        raise type(error)(error.what, where=where, fix=error.fix) from None


def _known_starts() -> list[str]:
    return [ASSISTANT_START, *(syntax.start for syntax in SYNTAXES)]


def _apertus(tokenizer: ImportedTokenizer, rendered: list[Rendered] | None) -> ChatFormat:
    """The Apertus format.

    The published template may differ in two ways from the one that models are trained with: it
    leaves the last turn of the assistant open, and has a default system message.
    """
    if rendered is not None:
        verify(rendered, lambda asked, prompt: text_of(render(asked, prompt=prompt)), equal=_alike)
    return ApertusFormat(tokenizer, tokenizer.sha256)


def _alike(ours: str, theirs: str) -> bool:
    if _EMPTY_SYSTEM in ours:
        theirs = _SYSTEM.sub(_EMPTY_SYSTEM, theirs, count=1)
    return ours in (theirs, theirs + ASSISTANT_END)


def _turns(
    syntax: TurnSyntax,
    tokenizer: ImportedTokenizer,
    rendered: list[Rendered] | None,
    template: str,
    tokens: Mapping[str, str],
    end_tokens: Sequence[str],
    whole: TemplateFormat | None,
) -> ChatFormat:
    traits = default_traits(syntax, tokenizer.has)
    if rendered is not None:
        traits = find_traits(syntax, rendered, tokens.get("bos_token") or traits.begin)
    required = [syntax.end, traits.begin, syntax.header_end, THINK if traits.thoughts else ""]
    for token in required:
        if token and not tokenizer.has(token):
            raise DataError(f"the chat template writes {token!r}, which is not a special token")
    chat = TurnFormat(
        syntax,
        traits,
        tokenizer,
        tokenizer_sha256=tokenizer.sha256,
        template=template,
        end_tokens=end_tokens,
        pad_token=tokens.get("pad_token", ""),
        rendered=whole,
    )

    def write(asked: Conversation, prompt: bool) -> str:
        return "".join(text_of(part) for part in chat.parts(asked, prompt=prompt))

    if rendered is not None:
        for asked, prompt, text in verify(
            rendered, write, system=traits.system, thoughts=traits.thoughts
        ):
            if chat.encode(asked, prompt=prompt).ids != tokenizer.encode_rendered(text):
                raise DataError(
                    "the tokenizer encodes a text differently beside a control token",
                    fix="Tokenizers that add blanks to a text are not supported",
                )
    return chat


def _render(template: str, names: Mapping[str, Any], folder: Path) -> list[Rendered]:
    """Every case as the template renders it, in a process of its own."""

    def work() -> bytes:
        rendered = render_all(template, [*cases(), *TOOL_CASES], names)
        return json.dumps([astuple(rendering) for rendering in rendered[: len(cases())]]).encode()

    answer = apart(work, cpu_s=_CPU_S, memory_bytes=_MEMORY)
    if answer is None:
        raise DataError(
            f"the chat template of {folder} needs more than {_CPU_S} s or {_MEMORY >> 30} GiB",
            fix="Use a template from a source that you trust",
        )
    return [Rendered(*fields) for fields in json.loads(answer)]


def _unrecognised(folder: Path) -> DataError:
    return DataError(
        f"{folder} has no chat template, and its special tokens match no known format",
        fix=f"Add {TEMPLATE}: the template that the model was trained with",
    )
