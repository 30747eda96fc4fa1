"""Licence detection for a repository: licence files, manifests, and SPDX lines of its sources."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stamm.corpus.licences.expression import (
    LONGEST_EXPRESSION,
    join_expressions,
    licence_ids,
    parse,
    spdx_identifier,
)
from stamm.corpus.licences.families import UNKNOWN_TERMS
from stamm.corpus.licences.licence import LONGEST_VALUE, MOST_EVIDENCE, Licence, LicenceEvidence
from stamm.corpus.licences.manifests import (
    LONGEST_MANIFEST,
    MANIFESTS,
    is_licence_file,
    manifest_licence,
)
from stamm.corpus.licences.names import spdx_expression
from stamm.corpus.licences.reuse import LONGEST_RULES, RULE_FILES, spdx_or_unknown
from stamm.corpus.licences.texts import LONGEST_TEXT, identify_licences

_REUSE_FILE = re.compile(r"licenses/([A-Za-z0-9.+-]{1,60})\.(?:txt|md)", re.IGNORECASE)
_README = re.compile(r"readme(?:\.\w{1,8})?", re.IGNORECASE)
_SPDX_MARK = re.compile(r"SPDX-License-Identifier[\"']?[ \t]*:", re.IGNORECASE)
# Ends of comments.
_SPDX_END = re.compile(r"\*+/|-->|#\}|\*\)|\|#|\]\]|-\}|=#|#>|\?>|%>")
_QUOTES = "\"'`"
# What writes or seeks such a line in another file: echo "SPDX-License-Identifier: MIT" >> x.
_SPDX_IN_CODE = re.compile(
    r"(?:\b(?:echo|printf?|puts|write\w*|append|assert\w*|grep|sed|rg|search|match)\b.*?|"
    r"[=(]\s*)[\"'`]"
)
_OWN_LICENCE = re.compile(r"\b(?:__)?licen[cs]e(?:__)?\s*[:=]\s*[\"'`]+", re.IGNORECASE)
_IGNORED = re.compile(r"REUSE-IgnoreStart.*?(?:REUSE-IgnoreEnd|\Z)", re.DOTALL)
_SNIPPET = "SPDX-SnippetBegin"
# "At your option" alone is not a choice of licence: the text of the GPL contains it.
_EITHER = re.compile(
    r"dual[- ]?licen[cs]ed|\bunder\s+either\s+(?:of|the)\b|\byour\s+choice\s+of\b|"
    r"\beither\W{0,3}\s*of\s+(?:the|these)\s+licen[cs]",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"https?://[^\s<>\"')\]]{1,200}")
_BEFORE = 200  # characters before an SPDX line on the same line
_HEAD = 4000  # characters of a source file searched for an SPDX line
_READ = 20_000  # characters searched for a choice of licences
_SHORT = 1500  # longest licence file, in characters, that may only be a reference
_MOST_LICENCES = 12


def repository_licence(files: Iterable[tuple[str, str]]) -> Licence:
    """The licence of a repository, from the paths and texts of its files.

    Reads licence files at its root (LICENSE, COPYING, LICENSE-MIT, LICENSES/MIT.txt), manifests
    there (manifests.MANIFESTS), and the SPDX-License-Identifier lines at the head of every file.
    Several licences hold together (AND), unless a licence file or the readme offers a choice (OR).
    Text in a licence file beside known licences adds LicenseRef-Unknown-Terms.

    Edge     licence files in folders are those of vendored code, and are not read. A sentence in
             the readme alone is not a licence. More than 12 licences give LicenseRef-Unknown-Terms.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    texts: dict[str, str] = {}
    manifests: dict[str, str] = {}
    sources: dict[str, int] = {}
    either = False
    for path, text in sorted(files):
        name = path.removeprefix("./")
        is_licence = is_licence_file(name)
        if is_licence or _REUSE_FILE.fullmatch(name):
            texts[name] = text
        if name in MANIFESTS:
            manifests[name] = manifest_licence(name, text)
        if is_licence or _README.fullmatch(name):
            either = either or _EITHER.search(text[:_READ]) is not None
        if not is_licence:
            for written in _spdx_lines(text):
                sources[written] = sources.get(written, 0) + 1
    evidence = [
        LicenceEvidence(signal="file", value=name[:LONGEST_VALUE], expression=_of_file(name, text))
        for name, text in texts.items()
    ]
    evidence += [
        LicenceEvidence(signal="manifest", value=name, expression=written)
        for name, written in manifests.items()
        if written
    ]
    for written, count in sorted(sources.items(), key=lambda item: (-item[1], item[0])):
        evidence.append(LicenceEvidence(signal="spdx", value=f"{count} files", expression=written))
    named = [e.expression for e in evidence if e.signal == "file" and e.expression]
    headers = [e.expression for e in evidence if e.signal != "file"]
    together = _whole(named, headers, either)
    return Licence(expression=together, evidence=tuple(evidence[:MOST_EVIDENCE]))


def licence_terms(name: str, text: str) -> str:
    """The part of a file that `repository_licence` reads, "" of any other file.

    name   path from the root: LICENSE, LICENSES/MIT.txt, package.json, README
    """
    if is_licence_file(name) or _REUSE_FILE.fullmatch(name):
        return text[: LONGEST_TEXT + 1]
    if name in MANIFESTS:
        return text[: LONGEST_MANIFEST + 1]
    if name in RULE_FILES:
        return text[: LONGEST_RULES + 1]
    choice = _EITHER.search(text[:_READ]) if _README.fullmatch(name) else None
    return choice[0] if choice else ""


def spdx_line_licence(text: str) -> str:
    """The SPDX expression of a source file: all lines at its head, and those of its snippets, hold
    together (REUSE specification 3.3, "Comment headers"); "" without any."""
    return _joined(_spdx_lines(text))


def _whole(files: list[str], headers: list[str], either: bool) -> str:
    single = sorted({name for e in (*files, *headers) for name in licence_ids(parse(e))})
    if len(single) > _MOST_LICENCES:
        return UNKNOWN_TERMS
    chosen = join_expressions("OR" if either and UNKNOWN_TERMS not in single else "AND", files)
    # Sources and manifests may state the choice between the licences whose texts are beside them.
    texts = {name for e in files for name in licence_ids(parse(e))}
    for header in headers:
        if " OR " in header and texts and texts <= set(licence_ids(parse(header))):
            chosen = ""
    return join_expressions("AND", [e for e in (chosen, *headers) if e])


def _spdx_lines(text: str) -> list[str]:
    """The expressions of the SPDX lines of a text, each once."""
    head = len(text) if _SNIPPET in text else _HEAD
    if "REUSE-IgnoreStart" in text[:head]:
        text = _IGNORED.sub("", text)
    lines = text[: head + LONGEST_EXPRESSION].splitlines(keepends=True)
    expressions: dict[str, None] = {}
    start = 0
    for line in lines:
        marks = list(_SPDX_MARK.finditer(line))
        for mark, end in zip(marks, [m.start() for m in marks[1:]] + [len(line)], strict=False):
            before = line[max(0, mark.start() - _BEFORE) : mark.start()]
            if start + mark.start() < head and not _in_code(before):
                expressions[_spdx_value(line[mark.end() : end])] = None
        start += len(line)
    return list(expressions)


def _spdx_value(written: str) -> str:
    """The expression behind the colon, up to the end of the comment or of the string it is in."""
    value = _SPDX_END.split(written, maxsplit=1)[0].strip()
    if value[:1] in ("'", '"'):
        value = value[1:]
    return spdx_or_unknown(re.split(f"[{_QUOTES}]", value, maxsplit=1)[0].strip())


def _in_code(before: str) -> bool:
    """Whether what is before the mark opens a string of a program that writes or seeks such lines."""
    return not _OWN_LICENCE.search(before) and any(
        before.count(match[0][-1], match.end() - 1) % 2 for match in _SPDX_IN_CODE.finditer(before)
    )


def _joined(expressions: list[str]) -> str:
    return (
        UNKNOWN_TERMS if len(expressions) > _MOST_LICENCES else join_expressions("AND", expressions)
    )


def _of_file(name: str, text: str) -> str:
    """The expression of a licence file: by its text, else by an address or a name in it."""
    found = identify_licences(text)
    names = list(found.licences)
    if names:
        either = len(names) > 1 and _EITHER.search(text[:_READ]) is not None
        return join_expressions(
            "AND" if found.has_more or not either else "OR",
            names + ([UNKNOWN_TERMS] if found.has_more else []),
        )
    if len(text) <= _SHORT:
        names = [e for e in map(spdx_expression, _ADDRESS.findall(text)) if e]
        names = (
            names
            or [e for e in [_joined(_spdx_lines(text))] if e]
            or [e for e in [spdx_expression(text.strip())] if e]
        )
    reuse = _REUSE_FILE.fullmatch(name)
    if not names and reuse and spdx_identifier(reuse[1]):
        names = [spdx_identifier(reuse[1])]
    # A file COPYRIGHT may only list people; LICENSE and COPYING state terms.
    states_terms = bool(text.strip()) and not name.lower().startswith("copyright")
    return join_expressions("AND", names or [UNKNOWN_TERMS] * states_terms)
