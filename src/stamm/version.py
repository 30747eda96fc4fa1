"""The version of stamm, and the folder that it runs from."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.2.0.dev0"
PACKAGE = Path(__file__).parent
