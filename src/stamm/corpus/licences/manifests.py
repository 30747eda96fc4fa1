"""The licence that a package's manifest names: package.json, composer.json, Cargo.toml, pyproject."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from stamm.corpus.licences.expression import join
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.names import spdx_expression

MANIFESTS = ("package.json", "composer.json", "Cargo.toml", "pyproject.toml")
LONGEST_MANIFEST = 200_000  # characters
_RESERVED = (
    "unlicensed",
    "proprietary",
)  # what npm and composer call a package that grants nothing
_MOST = 12


def manifest_licence(name: str, text: str) -> str:
    """The SPDX expression that the manifest called `name` names, "" where it names none.

    Several in a list may be chosen from (OR), and so in Cargo's old spelling "MIT/Apache-2.0".

    Edge     a licence that cannot be read adds LicenseRef-Unknown-Terms; a pointer to a file ("SEE
             LICENSE IN …", pyproject's file) says nothing here, since that file is read.
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
    said = data.get("license") or data.get("licenses") or []
    listed = said if isinstance(said, list) else [said]
    return join("OR", [e for value in listed[:_MOST] if (e := _expression(value))])


def _expression(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("type") or value.get("text")
    if not isinstance(value, str) or not value.strip() or value.lower().startswith("see licen"):
        return ""
    if value.strip().lower() in _RESERVED:
        return ALL_RIGHTS_RESERVED
    return spdx_expression(value.replace("/", " OR ")) or spdx_expression(value) or UNKNOWN_TERMS
