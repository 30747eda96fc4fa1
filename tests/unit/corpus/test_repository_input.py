"""Repositories of source code as inputs: every text file a document, nothing followed, all bounded."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
import zipfile
from importlib import resources
from pathlib import Path

import pytest
import zstandard

from stamm.base.errors import ConfigError, DataError
from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.documents import InputRecord, UnreadableRecord
from stamm.corpus.filter_job import filter_inputs
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.tables import parts, read_rows
from stamm.runs.job import Workspace

PACKED = (resources.files("stamm.corpus.licences") / "texts.jsonl.zst").read_bytes()
ROWS = zstandard.open(io.BytesIO(PACKED), "rt", encoding="utf-8").read().splitlines()
TEXTS = {row["id"]: row["text"] for row in map(json.loads, ROWS)}
FILES = {
    "stamm-1/LICENSE": TEXTS["MIT"].encode(),
    "stamm-1/src/main.py": b"print('one')\n",
    "stamm-1/src/kernel.c": b"/* SPDX-License-Identifier: GPL-2.0-only */\nint main;\n",
    "stamm-1/third/LICENSE": TEXTS["Apache-2.0"].encode(),
    "stamm-1/third/deep/er.py": "x = 'ü'\n".encode(),
    "stamm-1/logo.png": b"\x89PNG\0\0",
    "stamm-1/old.txt": "Gr\xfc\xdfe".encode("latin-1"),
    "stamm-1/.git/config": b"[core]\n",
}
LIMITS = ReadLimits()
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip")


def tar(files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT, **special: bytes) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=kind) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, flag in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = flag, "/etc/passwd"
            archive.addfile(info)
    return held.getvalue()


def packed(ending: str, files: dict[str, bytes]) -> bytes:
    if ending == ".zip":
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return held.getvalue()
    return compressed(ending, tar(files))


def compressed(ending: str, data: bytes) -> bytes:
    if ending in (".tar.gz", ".tgz"):
        return gzip.compress(data, mtime=0)
    return zstandard.compress(data) if ending == ".tar.zst" else data


def read(path: Path, data: bytes, limits: ReadLimits = LIMITS, url: str = "") -> list:
    path.write_bytes(data)
    return list(read_input(path.name, path, limits, url=url))


def reasons(records: list) -> dict[str, str]:
    return {r.path: r.reason for r in records if isinstance(r, UnreadableRecord)}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_text_file_is_a_document_under_its_own_licence(tmp_path: Path, ending: str) -> None:
    address = "https://example.org/stamm"
    records = read(tmp_path / f"a{ending}", packed(ending, FILES), url=address)
    assert [r.place.position for r in records] == list(range(1, 8))
    assert {
        r.path: (r.licence, r.licence_basis) for r in records if isinstance(r, InputRecord)
    } == {
        "stamm-1/LICENSE": ("MIT", "file"),
        "stamm-1/src/main.py": ("MIT", "file"),
        "stamm-1/src/kernel.c": ("GPL-2.0-only", "spdx"),
        "stamm-1/third/LICENSE": ("Apache-2.0", "file"),
        "stamm-1/third/deep/er.py": ("Apache-2.0", "file"),
    }
    assert reasons(records) == {"stamm-1/logo.png": "binary", "stamm-1/old.txt": "invalid_utf8"}
    deep = next(r for r in records if r.path.endswith("er.py"))
    assert deep.content.decode() == "x = 'ü'\n"
    assert deep.url == "https://example.org/stamm#stamm-1/third/deep/er.py"
    assert deep.source == f"a{ending}"


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_of_every_tar(tmp_path: Path, kind: int) -> None:
    files = {f"{'d' * 90}/{'e' * 80}/f.py": b"x", "b.py": b"y" * 513}
    if kind != tarfile.USTAR_FORMAT:
        files |= {f"ü/{'long' * 60}.py": b"z"}
    records = read(tmp_path / "a.tar", tar(files, kind))
    assert {r.path: r.content for r in records} == files


def test_the_system_tar_is_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    subprocess.run(["tar", "-C", folder, "-czf", tmp_path / "a.tar.gz", "."], check=True)
    records = list(read_input("a.tar.gz", tmp_path / "a.tar.gz", LIMITS))
    own = read(tmp_path / "b.tar", tar(FILES))
    assert {(r.path, r.content_id) for r in records if isinstance(r, InputRecord)} == {
        (r.path, r.content_id) for r in own if isinstance(r, InputRecord)
    }


def test_links_devices_and_paths_that_lead_out_are_told(tmp_path: Path) -> None:
    special = {"soft": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE}
    files = dict.fromkeys(
        ("../up.py", "/etc/x", "a/../../b", "C:\\x", "a\\..\\b", "./fine.py"), b"x"
    )
    records = read(tmp_path / "a.tar", tar(files, **special))
    assert reasons(records) == {
        **dict.fromkeys(("../up.py", "/etc/x", "a/../../b", "C:\\x", "a\\..\\b"), "bad_path"),
        "soft": "link",
        "hard": "link",
        "pipe": "no_file",
    }
    assert [r.path for r in records if isinstance(r, InputRecord)] == ["fine.py"]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        link = zipfile.ZipInfo("soft")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("../up.py", "x")
    assert reasons(read(tmp_path / "a.zip", held.getvalue())) == {
        "soft": "link",
        "../up.py": "bad_path",
    }


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_bombs_stop_and_long_files_are_left_out(tmp_path: Path, ending: str) -> None:
    zeros = {f"{n}.txt": b"0" * 2**23 for n in range(12)}
    records = read(tmp_path / f"a{ending}", packed(ending, zeros), ReadLimits(expansion=1))
    assert records[-1].reason == "decompression_limit"
    assert 6 <= len(records) <= 9
    limits = ReadLimits(record_bytes=100)
    records = read(
        tmp_path / f"b{ending}", packed(ending, {"a.py": b"1" * 101, "b.py": b"2"}), limits
    )
    assert reasons(records) == {"a.py": "record_too_long"}
    assert records[0].size == 101
    assert records[1].content == b"2"


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_archive_cut_or_changed_anywhere_never_breaks_out(tmp_path: Path, ending: str) -> None:
    whole = packed(ending, FILES)
    for at in range(1, len(whole), max(1, len(whole) // 60)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            try:
                records = read(tmp_path / f"a{ending}", data)
            except DataError:
                continue
            assert all(r.place.file for r in records)
    # A tar that ends where a file ended is told, too.
    cut = tar({"a.py": b"1", "b.py": b"2"})[:1024]
    assert [r.reason for r in read(tmp_path / "c.tar", cut)[1:]] == ["truncated_record"]


@pytest.mark.parametrize(("flag", "told"), [(1, "encrypted"), (1 << 5, "bit 5"), (1 << 6, "bit 6")])
def test_a_file_of_a_zip_that_python_cannot_read_is_told(
    tmp_path: Path, flag: int, told: str
) -> None:
    whole = bytearray(packed(".zip", {"a.py": b"1", "b.py": b"2"}))
    whole[whole.index(b"PK\x01\x02") + 8] |= flag
    bad, good = read(tmp_path / "a.zip", bytes(whole))
    assert (bad.path, bad.reason) == ("a.py", "content_encoding")
    assert told in bad.detail
    assert good.content == b"2"


def test_a_long_header_costs_one_file_and_a_path_of_a_megabyte_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 2**30
    (cut,) = read(tmp_path / "a.tar", info.tobuf() + bytes(4096))
    assert cut.reason == "truncated_record"
    rest = tar({"a.py": b"1", "b.py": b"2"})
    for kind, reasons in (
        (tarfile.XHDTYPE, ["record_too_long", ""]),
        (tarfile.GNUTYPE_LONGNAME, ["record_too_long", ""]),
        (tarfile.XGLTYPE, ["", ""]),
        (tarfile.GNUTYPE_LONGLINK, ["", ""]),
    ):
        info.type, info.size = kind, 2 * 2**20
        records = read(tmp_path / "c.tar", info.tobuf() + bytes(info.size) + rest)
        assert [getattr(r, "reason", "") for r in records] == reasons
    sparse = b"22 GNU.sparse.major=1\n"
    info.type, info.size = tarfile.XHDTYPE, len(sparse)
    (first, _) = read(tmp_path / "d.tar", info.tobuf() + sparse.ljust(512, b"\0") + rest)
    assert (first.reason, first.detail) == ("content_encoding", "a sparse file")
    records = read(tmp_path / "b.tar", tar({"d/" * 300_000 + "x.py": b"1", "y.py": b"2"}))
    assert [getattr(r, "reason", "") for r in records] == ["bad_path", ""]
    assert len(records[0].path) <= 4096


def test_no_archive_at_all_is_refused(tmp_path: Path) -> None:
    for ending in (".tar", ".zip", ".tar.gz"):
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / f"a{ending}", b"this is no archive " * 100)


def test_a_screen_takes_repositories_by_their_licences(tmp_path: Path) -> None:
    path = tmp_path / "stamm.tar.gz"
    path.write_bytes(packed(".tar.gz", FILES))
    config = FilterConfig(
        inputs=(str(path),),
        repositories=("*/other.zip=https://example.com/o", "*stamm*=https://example.org/stamm"),
        licences=LicenceConfig(),
        consent=ConsentConfig(unknown_host="allow"),
        dedup=None,
        language=None,
    )
    (tmp_path / "out").mkdir()
    filter_inputs(config, Workspace(folder=tmp_path / "out"))
    rows = [row for part in parts(tmp_path / "out", "ledger") for row in read_rows(part)]
    told = {r["path"].removeprefix("stamm-1/"): (r["reason"], r["licence_basis"]) for r in rows}
    assert told == {
        "LICENSE": ("", "file"),
        "src/main.py": ("", "file"),
        "src/kernel.c": ("licence_denied", "spdx"),
        "third/LICENSE": ("", "file"),
        "third/deep/er.py": ("", "file"),
        "logo.png": ("binary", ""),
        "old.txt": ("invalid_utf8", ""),
    }
    assert {r["host"] for r in rows if not r["reason"]} == {"example.org"}


@pytest.mark.parametrize("said", ["https://example.org/x", "a=example.org", "a=https://x.org/#b"])
def test_an_address_must_be_one(said: str) -> None:
    with pytest.raises(ConfigError, match="must be PATTERN=URL"):
        FilterConfig(inputs=("a.zip",), repositories=(said,))
