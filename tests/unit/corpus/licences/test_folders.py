"""Licences by folder: the nearest folder counts, never the SPDX line of another file."""

from __future__ import annotations

import io
import json
from importlib import resources

import pytest
import zstandard

from stamm.corpus.licences import folders
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.folders import FolderLicences
from stamm.corpus.licences.manifests import manifest_licence
from stamm.corpus.licences.repository import repository_licence

PACKED = (resources.files("stamm.corpus.licences") / "texts.jsonl.zst").read_bytes()
ROWS = zstandard.open(io.BytesIO(PACKED), "rt", encoding="utf-8").read().splitlines()
TEXTS: dict[str, str] = {row["id"]: row["text"] for row in map(json.loads, ROWS)}
MIT, APACHE = TEXTS["MIT"], TEXTS["Apache-2.0"]


def test_the_nearest_folder_with_terms_counts() -> None:
    terms = FolderLicences(
        {
            "LICENSE": MIT,
            "gpl.c": "// SPDX-License-Identifier: GPL-2.0-only",
            "third/LICENSE": APACHE,
            "third/own/COPYRIGHT": "Some people",
            "crate/Cargo.toml": '[package]\nlicense = "Apache-2.0/MIT"',
            "reuse/LICENSES/CC0-1.0.txt": "words of no licence known by its text",
            "secret/LICENSE": "You may look at this, and nothing else. " * 30,
        }.items()
    )
    assert terms.licence_of("a/b/c.py", "") == ("MIT", "file")
    assert terms.licence_of("a/b/c.py", "# SPDX-License-Identifier: ISC") == ("ISC", "spdx")
    assert terms.licence_of("third/own/c.py", "") == ("Apache-2.0", "file")
    assert terms.licence_of("thirdparty/c.py", "") == ("MIT", "file")
    assert terms.licence_of("crate/src/lib.rs", "") == ("Apache-2.0 OR MIT", "manifest")
    assert terms.licence_of("reuse/a.py", "") == ("CC0-1.0", "file")
    assert terms.licence_of("secret/a.py", "") == (UNKNOWN_TERMS, "file")


def test_without_terms_nothing_is_named() -> None:
    terms = FolderLicences({"a/LICENSE": MIT, "b.c": "SPDX-License-Identifier: MIT"}.items())
    assert terms.licence_of("c.py", "") == ("", "")
    assert terms.licence_of("", "") == ("", "")


def test_beyond_the_bound_terms_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MOST_TERMS", len(MIT))
    terms = FolderLicences({"a/LICENSE": MIT, "b/LICENSE": MIT}.items())
    assert terms.licence_of("a/x", "") == ("MIT", "file")
    assert terms.licence_of("b/x", "") == (UNKNOWN_TERMS, "file")


@pytest.mark.parametrize(
    ("name", "text", "expression"),
    [
        ("package.json", '{"license": "MIT"}', "MIT"),
        ("package.json", '{"license": {"type": "BSD-3-Clause"}}', "BSD-3-Clause"),
        ("package.json", '{"licenses": [{"type": "MIT"}, {"type": "ISC"}]}', "ISC OR MIT"),
        ("package.json", '{"license": "UNLICENSED"}', ALL_RIGHTS_RESERVED),
        ("package.json", '{"license": "SEE LICENSE IN terms.txt"}', ""),
        ("package.json", '{"license": "My Own License"}', UNKNOWN_TERMS),
        ("package.json", '{"license": ["MIT", "strange"]}', f"{UNKNOWN_TERMS} OR MIT"),
        ("composer.json", '{"license": ["MIT", "GPL-3.0+"]}', "GPL-3.0-or-later OR MIT"),
        ("Cargo.toml", '[package]\nlicense = "MIT OR Apache-2.0"', "Apache-2.0 OR MIT"),
        ("pyproject.toml", '[project]\nlicense = "BSD-2-Clause"', "BSD-2-Clause"),
        ("pyproject.toml", '[project]\nlicense = {file = "LICENSE"}', ""),
        ("pyproject.toml", '[tool.x]\nlicense = "MIT"', ""),
        ("package.json", "[" * 100_000, ""),
        ("Cargo.toml", "a = " + "[" * 100_000, ""),
        ("package.json", '{"license": 7}', ""),
        ("package.json", "[]", ""),
        ("package.json", " " * 300_000, ""),
    ],
)
def test_manifests(name: str, text: str, expression: str) -> None:
    assert sorted(manifest_licence(name, text).split(" OR ")) == sorted(expression.split(" OR "))


def test_a_manifest_may_name_the_choice_between_the_texts_beside_it() -> None:
    files = {"LICENSE-MIT": MIT, "LICENSE-APACHE": APACHE}
    assert repository_licence(files.items()).expression == "Apache-2.0 AND MIT"
    files["Cargo.toml"] = '[package]\nlicense = "MIT OR Apache-2.0"'
    assert repository_licence(files.items()).expression == "Apache-2.0 OR MIT"
