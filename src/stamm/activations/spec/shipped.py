"""Index of what ships, read from a file that `python -m stamm.activations.codegen` writes."""

from __future__ import annotations

from pathlib import Path

from stamm.base.files import read_json

INDEX = "index.json"
_TABLES: dict[str, dict[str, str]] = read_json(Path(__file__).parents[1] / "generated" / INDEX)
NAMES = _TABLES["names"]
"""Content hash to name."""
PARTS = _TABLES["parts"]
"""Parts of entries, likewise: checked, without a kernel of their own."""
HOMES = _TABLES["homes"]
"""Name or alias to the file of the catalogue that contains it."""
