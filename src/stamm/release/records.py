"""release.json: what a release was made from, in its folder and in the folder of the arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from stamm.base.schema import FieldError
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


@dataclass(frozen=True, kw_only=True)
class ReceiptsFile:
    """documents/receipts.json: the root of the tree over the ledger, which receipts lead to.

    root               in hexadecimal
    public_key         of the function that places URLs in the tree (a point of P-256)
    ledger_sha256      of the hashes of the ledger's files; names the tree in the publisher's folder
    urls, rows         leaves of the tree, and rows of the ledger
    rows_without_url   rows that no receipt can be asked for
    """

    SCHEMA: ClassVar[int] = 1

    root: str
    public_key: str
    ledger_sha256: str
    urls: int
    rows: int
    rows_without_url: int


@dataclass(frozen=True, kw_only=True)
class ConsentReceipt:
    """A consent receipt: the rows of one URL in a release's ledger, or that it has none, with the proof.

    release, model_sha256   name and weights of the release
    root, public_key        of its receipts.json
    url, proof, path, rows, other   as in `consent_tree.LedgerProof`
    """

    SCHEMA: ClassVar[int] = 1

    release: str
    model_sha256: str
    root: str
    public_key: str
    url: str
    proof: str
    path: tuple[str, ...]
    rows: str | None = None
    other: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.other is not None and len(self.other) != 2:
            raise FieldError("other", "the place and the content of a leaf")
        if len(self.path) > 256:
            raise FieldError("path", "at most 256 hashes")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in a released folder that does not hold: the file, and what is wrong with it."""

    file: str
    what: str
