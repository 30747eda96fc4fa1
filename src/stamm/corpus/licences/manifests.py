"""Licence fields of package manifests: package.json, composer.json, Cargo.toml, pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from stamm.base.json_text import parse_json
from stamm.corpus.licences.expression import join_expressions
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.names import spdx_expression

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
        choice = join_expressions("OR", [e for one in listed[:_MOST] if (e := _expression(one))])
        expressions.append(choice)
    return join_expressions("AND", [each for each in expressions if each])


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
