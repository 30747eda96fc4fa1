"""Render a folder's chat template in jinja2's sandbox. A template is a program, and untrusted input.

The sandbox keeps a template from Python's attributes; its time and memory have to be bounded by the
caller, who renders in a process of its own (`stamm.base.sandbox.apart`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST = 100_000
"""Characters of a rendered probe; a template that writes more is refused."""
_BEGIN, _END = "\U0010fffc", "\U0010fffd"
"""Characters for private use around a `{% generation %}` block."""
_UNPAIRED = f"a text has {_BEGIN!r} or {_END!r}, characters for private use"
_ABSENT = {"tools": None, "documents": None}  # transformers passes them, defined, to every template


@dataclass(frozen=True)
class Rendered:
    """The text that a template gives, or the message with which it refuses.

    spans   first and last character (exclusive) of each `{% generation %}` block in the text
    """

    text: str
    error: str = ""
    spans: Sequence[Sequence[int]] = ()


class _Generation(Extension):
    """`{% generation %}` of transformers, which marks what the assistant writes."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> Node:
        """A block that writes its body between two characters, which `_without_spans` removes."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_span"), [], [], body).set_lineno(line)

    def _span(self, caller: Callable[[], str]) -> str:
        return _BEGIN + caller() + _END


def render_all(
    template: str, cases: Sequence[Mapping[str, Any]], names: Mapping[str, Any]
) -> list[Rendered]:
    """The text of each case, or why the template does not give one.

    cases    variables of the template: messages, tools, add_generation_prompt, enable_thinking
    names    further variables: bos_token, eos_token and others, as transformers passes them

    Edge     `strftime_now` is not defined unless it is in `names`: a template with a date then writes
             its own default, and the text does not depend on the day
    """
    try:
        compiled = _compiled(template)
    except (jinja2.TemplateError, RecursionError) as error:
        return [Rendered("", f"it is not a template: {error}")] * len(cases)
    return [_rendered(compiled, {**_ABSENT, **names, **case}) for case in cases]


@functools.lru_cache(maxsize=4)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


def _rendered(template: jinja2.Template, variables: Mapping[str, Any]) -> Rendered:
    text = ""
    try:
        for piece in template.generate(**variables):
            text += piece
            if len(text) > LONGEST:
                return Rendered("", f"it writes more than {LONGEST} characters")
    except Exception as error:  # a template can raise any exception of its expressions
        return Rendered("", f"{type(error).__name__}: {error}"[:500])
    return _without_spans(text)


def _without_spans(text: str) -> Rendered:
    """A rendered text without the characters around its `{% generation %}` blocks, and their places."""
    pieces = re.split(f"([{_BEGIN}{_END}])", text)
    plain, opened, spans = "", [], []
    for piece in pieces:
        if piece == _BEGIN:
            opened.append(len(plain))
        elif piece == _END:
            if not opened:
                return Rendered("", _UNPAIRED)
            spans.append((opened.pop(), len(plain)))
        else:
            plain += piece
    return Rendered("", _UNPAIRED) if opened else Rendered(plain, spans=sorted(spans))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
