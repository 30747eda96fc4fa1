"""Licence fields of package manifests: package.json, composer.json, Cargo.toml, pyproject.toml."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from stamm.corpus.licences.expression import join_expressions
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.names import spdx_expression

MANIFESTS = ("package.json", "composer.json", "Cargo.toml", "pyproject.toml")
LONGEST_MANIFEST = 200_000  # characters
# Values of npm and composer for a package without a licence grant.
_RESERVED = ("unlicensed", "proprietary")
_MOST = 12


def manifest_licence(name: str, text: str) -> str:
    """The SPDX expression in the manifest called `name`, "" where it has none.

    A list is a choice (OR), and so is Cargo's old spelling "MIT/Apache-2.0".

    Edge     a licence that cannot be parsed adds LicenseRef-Unknown-Terms; a reference to a file
             ("SEE LICENSE IN …", pyproject's file) is ignored, since that file is read itself.
    Source   the fields as npm, composer, Cargo and the PyPA's pyproject specification define them.
    Checked  tests/unit/corpus/licences/test_repository.py
    """
    if len(text) > LONGEST_MANIFEST:
        return ""
    try:
        data: Any = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError):
        return ""
    section = {"Cargo.toml": "package", "pyproject.toml": "project"}.get(name)
    if section and isinstance(data, dict):
        data = data.get(section)
    if not isinstance(data, dict):
        return ""
    value = data.get("license") or data.get("licenses") or []
    listed = value if isinstance(value, list) else [value]
    return join_expressions("OR", [e for one in listed[:_MOST] if (e := _expression(one))])


def _expression(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("type") or value.get("text")
    if not isinstance(value, str) or not value.strip() or value.lower().startswith("see licen"):
        return ""
    if value.strip().lower() in _RESERVED:
        return ALL_RIGHTS_RESERVED
    return spdx_expression(value.replace("/", " OR ")) or spdx_expression(value) or UNKNOWN_TERMS
