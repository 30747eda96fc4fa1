"""Consent receipts: proofs of what a release's ledger holds about one URL (`stamm receipt`, `stamm verify receipt.json`).

The release holds the root of a tree over the whole ledger, dropped documents included, and two programs that
check a receipt without stamm. The secret key and the tree stay in a private folder of the publisher:
`key.pem`, and a folder for each ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from stamm.base.config import assignments, override
from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import atomic_folder, flush, json_line, sha256_value, write_text
from stamm.base.receipts import file_sha256
from stamm.base.schema import read_record, record, write_record
from stamm.corpus.documents import LONGEST_FIELD
from stamm.corpus.tables import parts, read_parts
from stamm.release.config import ReceiptConfig
from stamm.release.consent_proof import check_proof, read_receipts
from stamm.release.consent_tree import build_tree, prove
from stamm.release.layout import EVIDENCE, RECEIPTS, RECORD
from stamm.release.records import ConsentReceipt, ReceiptsFile, ReleaseFile
from stamm.release.vrf import SecretKey

CHECKS = {
    "verify_receipt.py": "verify_receipt.py.jinja",
    "verify_receipt.html": "verify_receipt.html",
}
"""Programs in a release that check a receipt without stamm, and their templates."""
_KEY = "key.pem"
_TREE = "tree.json"
_TEMPLATES = Path(__file__).with_name("templates")


def write_receipts(corpus: Path, private: Path, folder: Path) -> None:
    """Write receipts.json and the programs that check receipts below the release `folder`.

    corpus    folder of the corpus, whose whole ledger the tree covers
    private   folder of the secret key, which is made once, and of the tree, which is made once for a ledger

    Raises   RunError for a key that cannot be read
    """
    key = _key(private)
    ledger = sha256_value([file_sha256(path) for path in parts(corpus, "ledger")])
    tree = private / ledger[:16]
    if not (tree / _TREE).is_file():
        with atomic_folder(tree) as new:
            facts = build_tree(read_parts(corpus, "ledger"), key, new)
            write_record(new / _TREE, ReceiptsFile, facts | {"ledger_sha256": ledger})
    receipts = read_record(ReceiptsFile, tree / _TREE)
    if receipts.public_key != key.public.hex():
        raise RunError(
            f"{tree} was made with another key than {private / _KEY}",
            fix="Restore the key, or choose another folder with receipts=",
        )
    write_record(folder / RECEIPTS, ReceiptsFile, dataclasses.asdict(receipts))
    for name, template in CHECKS.items():
        write_text(folder / EVIDENCE / name, checking_program(template, receipts))


def checking_program(template: str, receipts: ReceiptsFile) -> str:
    """The text of a program that checks receipts of one ledger."""
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return text.replace("TREE_ROOT", receipts.root).replace("PUBLIC_KEY", receipts.public_key)


def receipt(
    release: str | os.PathLike[str],
    *changes: str,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> ConsentReceipt:
    """The receipt of a release for one URL: its rows in the ledger, or that it has none, with the proof.

        stamm.receipt("release", url="https://example.org/page", receipts="private").rows

    release    a folder that `stamm release … receipts=FOLDER` wrote
    changes, settings   of `ReceiptConfig`: the URL, and the private folder
    out        a file to write the receipt to; None: none
    Raises     RunError for a release without receipts; DataError when the private folder does not fit it
    """
    config = override(ReceiptConfig(), assignments(changes, settings))
    for name in ("url", "receipts"):
        if not getattr(config, name).strip():
            raise ConfigError(
                f"{name} is not given",
                fix="Such as `stamm receipt release url=https://example.org/page receipts=private`",
            )
    if len(config.url) > LONGEST_FIELD:
        raise ConfigError(f"url has {len(config.url):,} characters, more than {LONGEST_FIELD:,}")
    root, private = Path(release), Path(config.receipts)
    facts = read_receipts(root)
    tree = private / facts.ledger_sha256[:16]
    if not (private / _KEY).is_file() or not (tree / _TREE).is_file():
        raise DataError(
            f"{private} does not hold the key and the tree of {root}",
            fix=f"Name the folder that `stamm release` was given as receipts=, with {tree.name}",
        )
    proof = prove(tree, SecretKey.read(private / _KEY), config.url)
    check_proof(proof, facts.root, facts.public_key)  # a damaged tree proves nothing
    released = read_record(ReleaseFile, root / RECORD)
    made = ConsentReceipt(
        release=released.name,
        model_sha256=released.model_sha256,
        root=facts.root,
        public_key=facts.public_key,
        **dataclasses.asdict(proof),
    )
    if out is not None:
        write_text(Path(out), receipt_text(made))
    return made


def receipt_text(made: ConsentReceipt) -> str:
    """The receipt as JSON text."""
    # One line: indentation would be a quarter of its size.
    return json_line(record(ConsentReceipt, dataclasses.asdict(made)))


def _key(private: Path) -> SecretKey:
    path = private / _KEY
    if not path.exists():
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{_KEY}.{os.getpid()}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_bytes(SecretKey.generate().pem())
        flush(part)
        with contextlib.suppress(FileExistsError):  # another process was first
            path.hardlink_to(part)
        part.unlink()
    return SecretKey.read(path)
