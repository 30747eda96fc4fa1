"""Licence detection for a repository: licence files, manifests, SPDX lines, and rules for paths.

Source   REUSE specification 3.3, "REUSE.toml" and "DEP5"; the DEP5 format: Debian, "Machine-readable
         debian/copyright file" 1.0.
"""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import zstandard

from stamm.base.json_text import parse_json
from stamm.corpus.licences.expression import (
    LONGEST_EXPRESSION,
    LONGEST_VALUE,
    MOST_EVIDENCE,
    ExpressionError,
    Licence,
    LicenceEvidence,
    join_expressions,
    licence_ids,
    parse,
    spdx_identifier,
    write,
)
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.names import spdx_expression

LONGEST_TEXT = 400_000  # characters; the longest licence shipped has 43,000
_GRAM_WORDS = 4
_REQUIRED_SHARE = 0.75  # share of a licence's n-grams that a text must contain
_FEWEST_UNMATCHED = 100  # words outside known licences; fewer are names, dates and headings
_MOST_FOUND = 12  # licences found in one text; the words of further ones count as unmatched
_COPYRIGHT = re.compile(
    r"^\W*(?:portions )?(?:copyright\s*(?:\(c\)|©|[12][0-9]{3}|<)|©|\(c\)\s*[12]).*$",
    re.IGNORECASE | re.MULTILINE,
)
# A disclaimer names its holder: the author, the copyright holders or contributors, ISC.
_HOLDER = re.compile(
    r"\b(?:the )?(?:isc|authors?|copyright (?:holders?|owners?)|contributors?)"
    r"(?: (?:or|and) (?:the )?(?:copyright (?:holders?|owners?)|contributors?))?\b"
)
_WORD = re.compile(r"[a-z0-9]+")
_SAME = str.maketrans({"’": "'", "‘": "'", "–": "-", "—": "-"})
Grams = Counter[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class IdentifiedTexts:
    """The licences whose text a file contains, sorted, and the number of other words."""

    licences: tuple[str, ...]
    unmatched_words: int

    @property
    def has_more(self) -> bool:
        """Whether the other words may be terms of their own."""
        return self.unmatched_words >= _FEWEST_UNMATCHED


def identify_licences(text: str) -> IdentifiedTexts:
    """Identify the licences in a text, ignoring layout, case and copyright lines.

    Words are compared as 4-grams. The licence most similar to the text (Dice's coefficient), if
    three quarters of it occur, is found and its n-grams removed; then the rest is compared again.

    Edge     the text of GPL-3.0-or-later is that of GPL-3.0-only, which is returned;
             a text beyond 400,000 characters is not read, and all of it is unmatched.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    if len(text) > LONGEST_TEXT:
        return IdentifiedTexts(licences=(), unmatched_words=len(text) // 6)
    unmatched = word_grams(text)
    identified: list[str] = []
    for _ in range(_MOST_FOUND):
        best, name = 0.0, ""
        total = unmatched.total()
        for candidate, candidate_grams in _known().items():
            size = candidate_grams.total()
            # At most the rest of the text can be shared.
            if total < _REQUIRED_SHARE * size:
                continue
            shared = (
                (candidate_grams & unmatched).total()
                if candidate_grams.keys() & unmatched.keys()
                else 0
            )
            similarity = 2 * shared / (size + total)
            if shared >= _REQUIRED_SHARE * size and similarity > best:
                best, name = similarity, candidate
        if not name:
            break
        identified.append(name)
        unmatched -= _known()[name]
    return IdentifiedTexts(
        licences=tuple(sorted(set(identified))), unmatched_words=unmatched.total()
    )


def word_grams(text: str) -> Grams:
    """Counts of the word 4-grams of a text without copyright lines."""
    plain = _COPYRIGHT.sub(" ", text.translate(_SAME)).lower().replace("licence", "license")
    words = _WORD.findall(_HOLDER.sub("holder", plain))
    return Counter(zip(*(words[i:] for i in range(_GRAM_WORDS)), strict=False))


@cache
def _known() -> dict[str, Grams]:
    packed = resources.files("stamm.corpus.licences") / "texts.jsonl.zst"
    with zstandard.open(io.BytesIO(packed.read_bytes()), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["id"]: word_grams(row["text"]) for row in rows}


MANIFESTS = ("package.json", "composer.json", "Cargo.toml", "pyproject.toml")
LONGEST_MANIFEST = 200_000  # characters
# Values of npm and composer for a package without a licence grant.
_RESERVED = ("unlicensed", "proprietary")
_LICENCE_FILE = re.compile(
    r"(?:licen[cs]es?|copying|unlicen[cs]e|copyright)(?:[-_.][\w.+-]{1,60})?", re.IGNORECASE
)
_CODE_FILE = re.compile(r".*\.(?:py|js|ts|c|h|cc|cpp|rs|go|java|rb|sh|pl|php|swift|kt|scala)$")
_SEE_FILE = re.compile(r"see licen[cs]e in\s+(.+)", re.IGNORECASE)
_MOST = 12


def is_licence_file(name: str) -> bool:
    """Whether a file of this name states the terms of its folder: LICENSE, COPYING, LICENSE-MIT."""
    return bool(_LICENCE_FILE.fullmatch(name)) and not _CODE_FILE.match(name)


def manifest_licence(name: str, text: str) -> str:
    """The SPDX expression in the manifest called `name`, "" where it has none.

    A list is a choice (OR), and so is Cargo's old spelling "MIT/Apache-2.0". `license` and
    `licenses` hold together (AND).

    Edge     a licence that cannot be parsed adds LicenseRef-Unknown-Terms. A reference to a file
             ("SEE LICENSE IN …", pyproject's file, Cargo's license-file) gives nothing where that
             file is read itself, else LicenseRef-Unknown-Terms.
    Source   the fields as npm, composer, Cargo and the PyPA's pyproject specification define them.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    if len(text) > LONGEST_MANIFEST:
        return ""
    try:
        data: Any = parse_json(text) if name.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    section = {"Cargo.toml": "package", "pyproject.toml": "project"}.get(name)
    if section and isinstance(data, dict):
        data = data.get(section)
    if not isinstance(data, dict):
        return ""
    file = data.get("license-file")
    expressions = [_file_licence(file)] if isinstance(file, str) else []
    for key in ("license", "licenses"):
        value = data.get(key) or []
        listed = value if isinstance(value, list) else [value]
        choice = join_expressions(
            "OR", [e for entry in listed[:_MOST] if (e := _expression(entry))]
        )
        expressions.append(choice)
    return join_expressions("AND", [expression for expression in expressions if expression])


def _file_licence(path: str) -> str:
    return "" if is_licence_file(path.strip().strip("\"'").removeprefix("./")) else UNKNOWN_TERMS


def _expression(value: Any) -> str:
    if isinstance(value, dict):
        if isinstance(value.get("file"), str):
            return _file_licence(value["file"])
        value = value.get("type") or value.get("text")
    if not isinstance(value, str) or not value.strip():
        return ""
    if reference := _SEE_FILE.match(value.strip()):
        return _file_licence(reference[1])
    if value.strip().lower() in _RESERVED:
        return ALL_RIGHTS_RESERVED
    choice = value if "//" in value else value.replace("/", " OR ")
    return spdx_expression(choice) or UNKNOWN_TERMS


RULE_FILES = ("REUSE.toml", ".reuse/dep5")
LONGEST_RULES = 1_000_000  # characters
_MOST_RULES = 10_000
_LONGEST_PATTERN = 1000
_MOST_STARS = 4  # matching takes the length of a path to this power


@dataclass(frozen=True, kw_only=True)
class PathRule:
    """A licence for the files whose path from the folder of the rules matches.

    also   whether it holds beside the licence that a file states itself
    """

    pattern: re.Pattern[str]
    expression: str
    also: bool = False


def path_rules(name: str, text: str) -> list[PathRule]:
    """The rules of a REUSE.toml or dep5 file, in order: the last that matches a path holds.

    Edge   a file that cannot be read gives LicenseRef-Unknown-Terms for every path.
    """
    read = _toml_rules if name == "REUSE.toml" else _dep5_rules
    try:
        if len(text) > LONGEST_RULES:
            raise ValueError(f"over {LONGEST_RULES} characters")
        rules = list(read(text))
        if len(rules) > _MOST_RULES:
            raise ValueError(f"over {_MOST_RULES} rules")
    except (ValueError, TypeError, KeyError, RecursionError):
        return [PathRule(pattern=re.compile(".*", re.DOTALL), expression=UNKNOWN_TERMS)]
    return rules


def spdx_or_unknown(written: str) -> str:
    """A licence expression in its normal form; LicenseRef-Unknown-Terms for other text."""
    try:
        return write(parse(written))
    except ExpressionError:
        return UNKNOWN_TERMS


def _toml_rules(text: str) -> Iterator[PathRule]:
    for table in tomllib.loads(text)["annotations"]:
        licences = _listed(table.get("SPDX-License-Identifier", []))
        expression = join_expressions("AND", [spdx_or_unknown(licence) for licence in licences])
        for path in _listed(table["path"]):
            # "*" matches up to a slash, "**" across slashes; a backslash escapes the next character.
            also = table.get("precedence", "closest") != "closest"
            yield _rule(path, r"\\.|\*+|[^*\\]+|\\", "[^/]*", expression, also)


def _dep5_rules(text: str) -> Iterator[PathRule]:
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields = {
            name.strip().lower(): value
            for name, value in re.findall(r"(?m)^([A-Za-z-]+):((?:.*)(?:\n[ \t].*)*)", paragraph)
        }
        if "files" in fields:
            licence = (fields.get("license", "").strip().splitlines() or [""])[0]
            for path in fields["files"].split():
                yield _rule(path, r"\\.|\*|\?|[^*?\\]+|\\", ".*", spdx_or_unknown(licence), True)


def _rule(path: str, tokens: str, star: str, expression: str, also: bool) -> PathRule:
    if len(path) > _LONGEST_PATTERN or len(re.findall(r"\*+", path)) > _MOST_STARS:
        raise ValueError("a path that is too long, or has too many stars")
    parts = []
    for token in re.findall(tokens, path.removeprefix("./"), re.DOTALL):
        if token.startswith("*"):
            parts.append(star if len(token) == 1 else ".*")
        else:
            parts.append(
                "." if token == "?" else re.escape(token[-1] if token[0] == "\\" else token)
            )
    return PathRule(pattern=re.compile("".join(parts), re.DOTALL), expression=expression, also=also)


def _listed(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(element, str) for element in listed):
        raise TypeError("not text")
    return listed


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
    identified = identify_licences(text)
    names = list(identified.licences)
    if names:
        either = len(names) > 1 and _EITHER.search(text[:_READ]) is not None
        return join_expressions(
            "AND" if identified.has_more or not either else "OR",
            names + ([UNKNOWN_TERMS] if identified.has_more else []),
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


_MOST_TERMS = 8_000_000  # characters of terms that are read: 10 to 16 s of work
_NOT_READ = "not read"  # matches no licence, so it gives unknown terms
_SIDECAR = ".license"  # REUSE: picture.png.license has the licence of picture.png


class FolderLicences:
    """Licences of the folders of a repository, from its licence files, manifests and REUSE rules.

    files   paths and texts, consumed one by one; only text that states terms is kept

    The SPDX lines of a file, and of FILE.license beside it, apply to that file alone. Else the
    nearest REUSE.toml or .reuse/dep5 with a rule for its path holds, else the nearest folder above
    it with terms: vendored code in a folder with its own licence never gets that of the whole.
    Edge     a rule with `precedence` override or aggregate, or of dep5, holds together with the file's
             own lines (AND): override may drop a licence that the file states.
             Beyond 8 million characters of terms those of a folder are LicenseRef-Unknown-Terms.
    Checked  tests/unit/corpus/licences/test_folders.py
    """

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        terms: dict[str, dict[str, str]] = {}
        self._rules: dict[str, list[PathRule]] = {}
        self._sidecars: dict[str, str] = {}
        remaining_terms = _MOST_TERMS
        for path, text in files:
            folder, name = _placed(path)
            if path.endswith(_SIDECAR) and (sidecar_licence := spdx_line_licence(text)):
                self._sidecars[path.removesuffix(_SIDECAR)] = sidecar_licence
            found_terms = licence_terms(name, text)
            if not found_terms:
                continue
            remaining_terms -= len(found_terms)
            if name in RULE_FILES:
                rules = path_rules(name, found_terms if remaining_terms >= 0 else _NOT_READ)
                self._rules.setdefault(folder, []).extend(rules)
            else:
                terms.setdefault(folder, {})[name] = (
                    found_terms if remaining_terms >= 0 else _NOT_READ
                )
        licences = {folder: repository_licence(named.items()) for folder, named in terms.items()}
        self._folders = {
            folder: licence for folder, licence in licences.items() if licence.expression
        }

    def licence_of(self, path: str, text: str) -> tuple[str, str]:
        """The SPDX expression of a file, and its evidence: "spdx" (its own SPDX lines), "reuse" (a
        rule for its path), "file" (a licence file) or "manifest"; twice "" without any."""
        own_licences = [
            expression
            for expression in (self._sidecars.get(path, ""), spdx_line_licence(text))
            if expression
        ]
        rule = self._rule(path)
        if own_licences:
            together = [*own_licences, rule.expression] if rule and rule.also else own_licences
            return join_expressions(
                "AND", [expression for expression in together if expression]
            ), "spdx"
        if rule and rule.expression:
            return rule.expression, "reuse"
        for folder in _above(path):
            licence = self._folders.get(folder)
            if licence is not None:
                return licence.expression, licence.evidence[0].signal
        return "", ""

    def _rule(self, path: str) -> PathRule | None:
        for folder in _above(path):
            below = path.removeprefix(f"{folder}/") if folder else path
            for rule in reversed(self._rules.get(folder, ())):
                if rule.pattern.fullmatch(below):
                    return rule
        return None


def _above(path: str) -> Iterator[str]:
    """The folders above a file, the nearest first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _placed(path: str) -> tuple[str, str]:
    """The folder that a file applies to, and its name there; those in LICENSES and .reuse apply to
    the folder above."""
    folder, _, name = path.rpartition("/")
    above, _, last = folder.rpartition("/")
    return (above, f"{last}/{name}") if last.lower() in ("licenses", ".reuse") else (folder, name)
