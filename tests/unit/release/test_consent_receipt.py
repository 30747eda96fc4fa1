"""A receipt proves what the ledger holds about one URL, and shows nothing of another."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import write_json
from stamm.corpus.ledger import LedgerRow
from stamm.corpus.tables import LEDGER_SCHEMA, write_rows
from stamm.release import consent_tree
from stamm.release.consent_proof import (
    LedgerProof,
    check_proof,
    read_receipts,
    verify_receipt,
)
from stamm.release.consent_receipt import (
    CHECKS,
    receipt,
    receipt_text,
    write_receipts,
)
from stamm.release.consent_tree import build_tree, prove
from stamm.release.layout import RECEIPTS
from stamm.release.records import ConsentReceipt
from stamm.release.vrf import SecretKey

ABSENT = "https://absent.example/"


def row(number: int, **columns: Any) -> dict[str, Any]:
    """A row of a ledger."""
    given: dict[str, Any] = {
        "document_id": f"{number:032x}", "input_file": "secret/path", "input_position": 1,
        "url": f"https://h{number % 7}.example/p/{number}", "decision": "kept",
    }  # fmt: skip
    return LedgerRow(**(given | columns)).plain()


LEDGER = [
    *(row(n) for n in range(60)),
    row(60, url="https://me@Bücher.example:443/a b#top", decision="dropped", reason="robots",
        rule='Disallow: /"<script>'),
    *(row(100 + n, url="https://often.example/", licence="CC-BY-4.0" * 9) for n in range(30)),
    row(200, url=""),
]  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SecretKey, dict[str, Any]]:
    folder, key = tmp_path_factory.mktemp("tree"), SecretKey(7)
    return folder, key, build_tree(LEDGER, key, folder)


def test_the_root_is_that_of_a_trie_computed_from_the_definition(
    tree: tuple[Path, SecretKey, dict[str, Any]],
) -> None:
    folder, key, facts = tree

    def sha256(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    leaves = {}
    for url in {entry["url"] for entry in LEDGER if entry["url"].startswith("https://h")}:
        shown = {"document_id": f"{int(url.rpartition('/')[2]):032x}", "decision": "kept"}
        rows = json.dumps({"count": 1, "rows": [shown]})
        secret = key.output(url.encode())
        place = sha256(b"stamm ledger index", secret)
        leaves[f"{int.from_bytes(place, 'big'):0256b}"] = sha256(
            b"\0", place, sha256(b"\2", sha256(b"stamm ledger salt", secret), rows.encode())
        )
    for url in ("https://xn--bcher-kva.example/a%20b#top", "https://often.example/"):
        rows = prove(folder, key, url).rows or ""
        secret = key.output(url.encode())
        place = sha256(b"stamm ledger index", secret)
        leaves[f"{int.from_bytes(place, 'big'):0256b}"] = sha256(
            b"\0", place, sha256(b"\2", sha256(b"stamm ledger salt", secret), rows.encode())
        )

    def node(prefix: str) -> bytes:
        below = [place for place in leaves if place.startswith(prefix)]
        if len(below) < 2:
            return leaves[below[0]] if below else bytes(32)
        return sha256(b"\1", node(prefix + "0"), node(prefix + "1"))

    assert facts["root"] == node("").hex()
    assert (facts["urls"], facts["rows"], facts["rows_without_url"]) == (62, 92, 1)


def test_every_url_is_proved_in_any_spelling_and_absence_too(
    tree: tuple[Path, SecretKey, dict[str, Any]],
) -> None:
    folder, key, facts = tree
    proof = prove(folder, key, "HTTPS://BÜCHER.example/a%20b#top")
    check_proof(proof, facts["root"], facts["public_key"])
    (shown,) = json.loads(proof.rows or "")["rows"]
    assert (shown["decision"], shown["rule"]) == ("dropped", 'Disallow: /"<script>')
    assert "secret" not in (proof.rows or "")
    often = json.loads(prove(folder, key, "https://often.example").rows or "")
    assert often["count"] == 30 and 1 < len(often["rows"]) < 30
    draw = random.Random(1)
    shapes = set()
    for url in (f"https://absent.example/{draw.random()}" for _ in range(12)):
        proof = prove(folder, key, url)
        check_proof(proof, facts["root"], facts["public_key"])
        assert proof.rows is None
        shapes.add(proof.other is None)
    assert shapes == {True, False}  # an empty place, and the leaf of another URL


def test_no_answer_but_the_true_one_holds(tree: tuple[Path, SecretKey, dict[str, Any]]) -> None:
    folder, key, facts = tree
    inside, outside = (prove(folder, key, url) for url in ("https://h1.example/p/1", ABSENT))
    leaf = prove(folder, key, "https://h2.example/p/2")
    forged = [
        dataclasses.replace(inside, rows=None),
        dataclasses.replace(inside, rows=None, other=("0" * 64, "0" * 64)),
        dataclasses.replace(inside, rows=(inside.rows or "").replace("kept", "dropped")),
        dataclasses.replace(inside, path=inside.path[:-1]),
        dataclasses.replace(inside, path=(*inside.path, "")),
        dataclasses.replace(inside, path=("x", *inside.path)),
        dataclasses.replace(inside, url="https://h1.example/p/2"),
        dataclasses.replace(inside, proof=leaf.proof),
        dataclasses.replace(outside, rows=inside.rows),
        dataclasses.replace(outside, path=(), other=None),
        dataclasses.replace(inside, url="\ud800"),
        dataclasses.replace(inside, proof=""),
    ]
    # The absence of a URL that is there, by the path to a leaf beside it.
    place = hashlib.sha256(
        b"stamm ledger index" + key.output(b"https://h1.example/p/1")
    ).hexdigest()
    forged.append(dataclasses.replace(inside, rows=None, other=(place, "0" * 64)))
    forged.append(dataclasses.replace(outside, url=inside.url, proof=inside.proof))
    for proof in forged:
        with pytest.raises(DataError, match="receipt"):
            check_proof(proof, facts["root"], facts["public_key"])


def test_guessed_urls_cannot_be_compared_with_what_a_receipt_shows(
    tree: tuple[Path, SecretKey, dict[str, Any]],
) -> None:
    folder, key, facts = tree
    shown = json.dumps([dataclasses.asdict(prove(folder, key, f"{ABSENT}{n}")) for n in range(8)])
    for entry in LEDGER:
        assert not entry["url"] or entry["url"] not in shown
    # Without the key: another key gives other places, so that none of them is a function of the URL alone.
    other = SecretKey(8)
    with pytest.raises(DataError):
        check_proof(
            dataclasses.replace(prove(folder, other, ABSENT), path=()),
            facts["root"],
            facts["public_key"],
        )
    places = {other.output(entry["url"].encode()).hex() for entry in LEDGER}
    assert not any(place in shown for place in places)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_small_ledgers(tmp_path: Path, count: int) -> None:
    facts = build_tree([row(n) for n in range(count)], SecretKey(9), tmp_path)
    assert facts["urls"] == count
    for url in (ABSENT, "https://h0.example/p/0"):
        proof = prove(tmp_path, SecretKey(9), url)
        check_proof(proof, facts["root"], facts["public_key"])
        assert (proof.rows is not None) == (count > 0 and url != ABSENT)


def released(folder: Path, ledger: list[dict[str, Any]]) -> tuple[Path, Path]:
    """A release with receipts alone, and the private folder."""
    corpus, release = folder / "corpus", folder / "release"
    (release / "documents").mkdir(parents=True)
    corpus.mkdir()
    write_rows(corpus / "ledger-00000.parquet", LEDGER_SCHEMA, ledger)
    record = {"schema": 1, "version": "1", "name": "mine", "arm": "a", "formats": [],
              "model_sha256": "0" * 64, "tokenizer_sha256": "0" * 64}  # fmt: skip
    write_json(release / "release.json", record)
    write_receipts(corpus, folder / "private", release)
    return release, folder / "private"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return released(tmp_path_factory.mktemp("released"), LEDGER)


def test_a_receipt_is_small_and_checked_offline_by_four_programs(
    release: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, private = release
    script = folder / "documents" / "verify_receipt.py"
    assert len(script.read_text().splitlines()) <= 60
    for url, inside in (("https://often.example/", True), (ABSENT, False)):
        path = tmp_path / "receipt.json"
        made = receipt(folder, url=url, receipts=private, out=path)
        assert path.stat().st_size <= 4000
        assert verify_receipt(path) == verify_receipt(path, folder) == made
        line = [sys.executable, "-I", "-S", script, path]
        told = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        assert ("is in the ledger" in told) == inside and ("is not in the ledger" in told) != inside
        path.write_text(receipt_text(dataclasses.replace(made, url="https://h3.example/p/3")))
        assert subprocess.run(line, capture_output=True, check=False).returncode == 1
        with pytest.raises(DataError, match="not proved"):
            verify_receipt(path)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_gives_the_same_answers(release: tuple[Path, Path], tmp_path: Path) -> None:
    folder, private = release
    page = (folder / "documents" / "verify_receipt.html").read_text()
    program = page.partition("<script>")[2].partition("</script>")[0]
    texts = [
        receipt_text(receipt(folder, url=url, receipts=private))
        for url in (ABSENT, LEDGER[5]["url"])
    ]
    texts += [texts[0].replace("absent", "another"), texts[1].replace("kept", "Kept"), "{}"]
    (tmp_path / "run.cjs").write_text(
        f"{program}\n(async () => {{ for (const text of {json.dumps(texts)}) "
        "console.log(JSON.stringify(await report(text))) })()"
    )
    told = subprocess.run(
        ["node", tmp_path / "run.cjs"], capture_output=True, text=True, check=True
    )
    lines = told.stdout.splitlines()
    assert "is not in the ledger" in lines[0] and "is in the ledger" in lines[1]
    assert len(lines) == 5 and all("does not hold" in line for line in lines[2:])


def test_the_key_is_private_and_kept_and_the_tree_is_made_once(tmp_path: Path) -> None:
    release, private = released(tmp_path, LEDGER[:3])
    assert (private / "key.pem").stat().st_mode & 0o77 == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write_receipts(tmp_path / "corpus", private, release)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (private / "key.pem").read_bytes() not in b"".join(
        path.read_bytes() for path in release.rglob("*") if path.is_file()
    )
    (private / "key.pem").write_bytes(SecretKey(11).pem())
    with pytest.raises(RunError, match="another key"):
        write_receipts(tmp_path / "corpus", private, release)


def test_a_killed_build_leaves_no_tree_and_the_next_has_the_same_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, private = released(tmp_path / "whole", LEDGER[:9])
    root = read_receipts(release).root
    part = tmp_path / "part" / "release"
    (part / "documents").mkdir(parents=True)
    other = tmp_path / "part" / "private"
    other.mkdir()
    shutil.copy(private / "key.pem", other)

    def interrupted(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(consent_tree, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_receipts(tmp_path / "whole" / "corpus", other, part)
    assert [path.name for path in other.iterdir()] == ["key.pem"]
    assert not list((part / "documents").iterdir())
    write_receipts(tmp_path / "whole" / "corpus", other, part)
    assert read_receipts(part).root == root


def test_damage_and_wrong_folders_are_told(release: tuple[Path, Path], tmp_path: Path) -> None:
    folder, private = release
    with pytest.raises(DataError, match="does not hold the key"):
        receipt(folder, url=ABSENT, receipts=tmp_path)
    with pytest.raises(ConfigError, match="url is not given"):
        receipt(folder, url=" ", receipts=private)
    with pytest.raises(RunError, match=r"has no documents/receipts.json"):
        receipt(tmp_path, url=ABSENT, receipts=private)
    copy = shutil.copytree(private, tmp_path / "private")
    (leaves,) = copy.glob("*/leaves.bin")
    octets = bytearray(leaves.read_bytes())
    for start in range(0, len(octets), 64):
        octets[start + 40] ^= 1
    leaves.write_bytes(octets)
    with pytest.raises(DataError, match="does not lead to the root"):
        receipt(folder, url="https://h1.example/p/1", receipts=copy)
    other, _ = released(tmp_path / "other", LEDGER[:5])
    path = tmp_path / "receipt.json"
    receipt(folder, url=ABSENT, receipts=private, out=path)
    with pytest.raises(DataError, match=r"not proved|root"):
        verify_receipt(path, other)
    assert set(CHECKS) == {"verify_receipt.py", "verify_receipt.html"} and RECEIPTS.endswith(
        ".json"
    )
    assert isinstance(verify_receipt(path), ConsentReceipt) and LedgerProof
