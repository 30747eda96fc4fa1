"""release.json: what a release was made from, in its folder and in the folder of the arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.runs.records import OutputFile


@dataclass(frozen=True, kw_only=True)
class ReleaseFile:
    """release.json of a released folder.

    version            of stamm
    name               of the model: the name of the folder
    recipe, arm        of the run; "" for a recipe that is not known
    licence            of the model, as its export states it; "" when none was stated
    formats            export targets, each with a parity.json
    model_sha256       of the trained weights, which every result in the release was measured on
    tokenizer_sha256   of tokenizer.json
    pack_sha256        of the manifest of the packed corpus; None without one
    corpus_sha256      of the summary of the corpus; None without one
    parity_sha256      of the parity.json of each format, which has the SHA-256 of the exported files
    without_receipt    copied files that no receipt of the run covers: nothing shows what wrote them
    """

    SCHEMA: ClassVar[int] = 1

    version: str
    name: str
    recipe: str = ""
    arm: str
    licence: str = ""
    formats: tuple[str, ...]
    model_sha256: str
    tokenizer_sha256: str
    pack_sha256: str | None = None
    corpus_sha256: str | None = None
    parity_sha256: Mapping[str, str] = field(default_factory=dict)
    without_receipt: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReleasedFile:
    """released.json in the folder of an arm: its latest release, for the report.

    sums_sha256   of SHA256SUMS; of a signed release it differs each time
    files         size and SHA-256 by name
    """

    SCHEMA: ClassVar[int] = 1

    name: str
    model_sha256: str
    licence: str = ""
    formats: tuple[str, ...]
    signed: bool = False
    sums_sha256: str
    files: Mapping[str, OutputFile] = field(default_factory=dict)
