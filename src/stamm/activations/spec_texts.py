"""What the words in a Spec may be: they stand in the source text of kernels, so none may leave it.

Formulas are parsed; titles, sources and names of another library's constants are written as they
are, into a docstring, a comment and a signature. A spec may come from a stranger.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stamm.activations.spec import Spec

MAX_CHARACTERS = 4000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def text_problems(spec: Spec) -> Iterator[str]:
    """Every text that is no plain line, and every name of a compat order that is no name.

    Checked  tests/unit/activations/test_user_spec.py
    """
    texts = [("title", spec.title), ("source", spec.source), ("notes", spec.notes)]
    texts += [("peer", peer) for peer in spec.peers]
    names = []
    if spec.compat is not None:
        names = [spec.compat.name, *(constant.name for constant in spec.compat.constants)]
        texts.append(("compat source", spec.compat.source))
        texts += [("compat condition", piece.where) for piece in spec.compat.pieces]
    for what, text in texts:
        if len(text) > MAX_CHARACTERS:
            yield f"the {what} has {len(text)} characters, more than {MAX_CHARACTERS}"
        elif not text.isprintable():
            yield f"the {what} {text[:60]!r} is not one line of printable text"
        elif '"""' in text or "\\" in text:
            yield f"the {what} {text[:60]!r} holds a backslash or three quotation marks"
        elif what == "compat condition" and "#" in text:
            yield f"the {what} {text[:60]!r} holds a comment"
    for name in names:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            yield f"{name[:60]!r} is no name for a compat order or its constant"
