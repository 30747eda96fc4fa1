"""A receipt proves what the ledger holds about one URL, and shows nothing of another."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stamm.base.errors import ConfigError, DataError, RunError
from stamm.base.files import write_json
from stamm.cli.verify import print_receipt
from stamm.corpus.ledger import LedgerRow
from stamm.corpus.tables import LEDGER_SCHEMA, write_rows
from stamm.release import consent_tree, p256
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
    texts = [
        receipt_text(receipt(folder, url=url, receipts=private))
        for url in (ABSENT, LEDGER[5]["url"])
    ]
    texts += [texts[0].replace("absent", "another"), texts[1].replace("kept", "Kept"), "{}"]
    lines = in_the_page(folder, texts, tmp_path)
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


def in_every_program(folder: Path, text: str, tmp_path: Path) -> list[bool]:
    """Whether the library and the script of a release accept the text of a receipt."""
    path = tmp_path / "asked.json"
    path.write_text(text, encoding="utf-8")
    try:
        verify_receipt(path, folder)
        answers = [True]
    except DataError:
        answers = [False]
    line = [sys.executable, "-I", "-S", folder / "documents" / "verify_receipt.py", path]
    told = subprocess.run(line, capture_output=True, text=True, check=False)
    assert "Traceback" not in told.stderr
    return [*answers, told.returncode == 0]


def in_the_page(folder: Path, texts: list[str], tmp_path: Path) -> list[str]:
    """What the page of a release says of the texts of receipts."""
    page = (folder / "documents" / "verify_receipt.html").read_text()
    program = page.partition("<script>")[2].partition("</script>")[0]
    (tmp_path / "run.cjs").write_text(
        f"{program}\n(async () => {{ for (const text of {json.dumps(texts)}) "
        "console.log(JSON.stringify(await report(text))) })()"
    )
    told = subprocess.run(
        ["node", tmp_path / "run.cjs"], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


def forgeries(release: tuple[Path, Path]) -> list[str]:
    """Receipts that must not hold: of every field another form, and the absence of a URL that is there."""
    folder, private = release
    key = SecretKey.read(private / "key.pem")
    texts = []
    for url in {entry["url"] for entry in LEDGER if entry["url"]}:
        made = json.loads(receipt_text(receipt(folder, url=url, receipts=private)))
        secret = key.output(made["url"].encode())
        place, salt = (
            hashlib.sha256(f"stamm ledger {name}".encode() + secret).digest()
            for name in ("index", "salt")
        )
        content = hashlib.sha256(b"\2" + salt + made["rows"].encode()).digest()
        # The same bytes before the hash of the leaf, divided elsewhere: a shorter place is a smaller number.
        for at in (0, 1, 31, 33, 64):
            both = place + content
            other = [both[:at].hex(), both[at:].hex()]
            texts.append(json.dumps(made | {"rows": None, "other": other}))
    changes: list[dict[str, Any]] = [
        {"root": "0" * 64}, {"public_key": SecretKey(8).public.hex()}, {"other": ["0" * 64] * 2},
        {"proof": made["proof"].upper()}, {"proof": f" {made['proof']}"}, {"proof": made["proof"] + "00"},
        {"proof": made["proof"][:66]}, {"proof": ""}, {"path": ""}, {"path": {}}, {"path": None},
        {"path": [made["path"][0] + "00", *made["path"][1:]]}, {"path": [None, *made["path"][1:]]},
        {"path": ["" for _ in range(300)]}, {"path": made["path"] * 60}, {"rows": 1}, {"rows": []},
        {"rows": made["rows"] + "\n"}, {"rows": ""}, {"url": made["url"] + "\n"}, {"url": "\ud800"}, {"url": ""},
        {"url": 3}, {"rows": None, "other": []}, {"rows": None, "other": "ab"}, {"rows": None, "other": {}},
    ]  # fmt: skip
    return texts + [json.dumps(made | change) for change in changes] + ["[]", "1", "{"]


def test_forged_receipts_hold_in_no_program(release: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches hashes with two readings: `other` of other lengths made a document that is there absent."""
    folder, texts = release[0], forgeries(release)
    script = runpy.run_path(str(folder / "documents" / "verify_receipt.py"))
    assert len(texts) > 300
    for text in texts[-29:-23]:
        assert in_every_program(folder, text, tmp_path) == [False, False], text
    path = tmp_path / "asked.json"
    for text in texts:
        path.write_text(text)
        with pytest.raises(DataError):
            verify_receipt(path, folder)
        with pytest.raises((ValueError, TypeError, AttributeError)):
            script["check"](json.loads(text))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_forged_receipts_do_not_hold_in_the_page(
    release: tuple[Path, Path], tmp_path: Path
) -> None:
    texts = forgeries(release)
    told = in_the_page(release[0], texts[:: len(texts) // 60] + texts[-29:], tmp_path)
    assert len(told) > 80
    assert all(line.startswith("The receipt does not hold: ") for line in told)


def test_a_receipt_with_the_name_or_weights_of_another_release_is_refused(
    release: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, private = release
    made, path = receipt(folder, url=ABSENT, receipts=private), tmp_path / "receipt.json"
    for change in ({"release": "other"}, {"model_sha256": "1" * 64}):
        path.write_text(json.dumps(json.loads(receipt_text(made)) | change))
        with pytest.raises(DataError, match="not of this release"):
            verify_receipt(path, folder)


def test_the_point_at_infinity_is_refused_by_every_program(tmp_path: Path) -> None:
    """The owner of the key can choose the nonce 0, and two programs could not encode the points that follow."""
    folder, private = released(tmp_path, LEDGER[:3])
    key = SecretKey.read(private / "key.pem")
    made = json.loads(receipt_text(receipt(folder, url=ABSENT, receipts=private)))
    h = p256.on_curve(key.public, made["url"].encode())
    gamma = p256.decoded(bytes.fromhex(made["proof"][:66]))
    c = p256.challenge(p256.decoded(key.public), h, gamma, None, None)
    s = int.from_bytes(c, "big") * key._number % p256.Q
    proof = made["proof"][:66] + c.hex() + s.to_bytes(32, "big").hex()
    assert in_every_program(folder, json.dumps(made), tmp_path) == [True, True]
    changed = json.dumps(made | {"proof": proof})
    assert in_every_program(folder, changed, tmp_path) == [False, False]


def test_a_hostile_ledger_gives_small_receipts_in_ascii(tmp_path: Path) -> None:
    hostile = "\U0001f600" * 4000
    ledger = [
        row(1, rule=hostile, agent=hostile, licence=hostile),
        row(2, url="a file \u202e\n ü"),
    ]
    folder, private = released(tmp_path, ledger)
    for url in (ledger[0]["url"], ledger[1]["url"]):
        path = tmp_path / "receipt.json"
        made = receipt(folder, url=url, receipts=private, out=path)
        assert made.rows is not None and verify_receipt(path, folder) == made
        assert path.stat().st_size <= 4000 and made.url.isascii() and made.rows.isascii()
    assert made.url == "a%20file%20%C3%BC" or made.url == "a%20file%20%20%C3%BC"


@pytest.mark.parametrize("rows", ["[]", "no JSON", '{"count": "x", "rows": [3]}'])
def test_rows_of_any_form_are_printed(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_receipt(
        ConsentReceipt(release="m", model_sha256="", root="", public_key="", url="https://a.example/",
                       proof="", path=(), rows=rows)
    )  # fmt: skip
    assert rows in capsys.readouterr().out
