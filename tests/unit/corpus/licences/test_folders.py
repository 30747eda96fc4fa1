"""Licences by folder: the nearest folder counts, never the SPDX line of another file."""

from __future__ import annotations

import io
import json
from importlib import resources

import pytest
import zstandard

from stamm.corpus.licences import repository
from stamm.corpus.licences.families import ALL_RIGHTS_RESERVED, UNKNOWN_TERMS
from stamm.corpus.licences.repository import FolderLicences, manifest_licence, repository_licence

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
    monkeypatch.setattr(repository, "_MOST_TERMS", len(MIT))
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
        ("package.json", '{"license": "SEE LICENSE IN LICENSE.md"}', ""),
        ("package.json", '{"license": "SEE LICENSE IN terms.txt"}', UNKNOWN_TERMS),
        ("package.json", '{"license": "MIT", "licenses": [{"type": "ISC"}]}', "ISC AND MIT"),
        ("Cargo.toml", '[package]\nlicense-file = "LICENSE"', ""),
        ("Cargo.toml", '[package]\nlicense-file = "../EULA.txt"', UNKNOWN_TERMS),
        ("pyproject.toml", '[project]\nlicense = {file = "legal/terms.txt"}', UNKNOWN_TERMS),
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


def of_line(text: str) -> str:
    return FolderLicences([]).licence_of("a", text)[0]


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (
            "// SPDX-License-Identifier: MIT\n// SPDX-License-Identifier: GPL-3.0-or-later\n\nx",
            "GPL-3.0-or-later AND MIT",
        ),
        (
            "// SPDX-FileCopyrightText: 2017 A\n// SPDX-FileContributor: B\n//\n"
            "// SPDX-License-Identifier: GPL-3.0-or-later\n// SPDX-License-Identifier: Apache-2.0\n"
            "// SPDX-License-Identifier: MIT OR ISC",
            "(ISC OR MIT) AND Apache-2.0 AND GPL-3.0-or-later",
        ),
        (
            '# SPDX-License-Identifier: MIT\necho "# SPDX-License-Identifier: CC0-1.0" >> .gitignore',
            "MIT",
        ),
        ('{"//": "SPDX-License-Identifier: GPL-2.0-only", "a": 1}', "GPL-2.0-only"),
        ('{"_comment": "SPDX-License-Identifier: GPL-2.0-only"}', "GPL-2.0-only"),
        ("--[[ SPDX-License-Identifier: MIT ]]", "MIT"),
        ("{- SPDX-License-Identifier: MIT -}", "MIT"),
        ("<# SPDX-License-Identifier: MIT #>", "MIT"),
        ('r"""SPDX-License-Identifier: MIT"""', "MIT"),
        ("dnl SPDX-License-Identifier: MIT", "MIT"),
        ("# spdx-license-identifier: gpl-3.0-only", "GPL-3.0-only"),
        ("# SPDX-License-Identifier: MIT, ISC", UNKNOWN_TERMS),
        ("// SPDX-License-Identifier: (GPL-2.0-or-later WITH\n// Bootloader-exception)", UNKNOWN_TERMS),
        (
            "# REUSE-IgnoreStart\n# SPDX-License-Identifier: GPL-3.0-only\n# REUSE-IgnoreEnd\n"
            "# SPDX-License-Identifier: MIT",
            "MIT",
        ),
        (
            "# SPDX-License-Identifier: MIT\n" + "x\n" * 9000
            + "# SPDX-SnippetBegin\n# SPDX-License-Identifier: GPL-3.0-only\n# SPDX-SnippetEnd",
            "GPL-3.0-only AND MIT",
        ),
        ("".join(f"# SPDX-License-Identifier: LicenseRef-{i}\n" for i in range(50)), UNKNOWN_TERMS),
    ],
)  # fmt: skip
def test_all_spdx_lines_of_a_file_hold(text: str, expression: str) -> None:
    assert of_line(text) == expression


REUSE = """
version = 1
[[annotations]]
path = ["**"]
SPDX-License-Identifier = "MIT"
[[annotations]]
path = "data/*.csv"
SPDX-License-Identifier = ["CC-BY-4.0", "ODbL-1.0"]
[[annotations]]
path = "vendored/**"
precedence = "override"
SPDX-License-Identifier = "GPL-3.0-only"
"""
DEP5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: x

Files: *
Copyright: A
License: MIT

Files: img/*.png
 docs/?.md
License: CC-BY-SA-4.0
 and some words
"""


def test_rules_of_reuse_apply_by_path() -> None:
    terms = FolderLicences(
        {
            "x/REUSE.toml": REUSE,
            "x/LICENSES/GPL-3.0-only.txt": TEXTS["GPL-3.0-only"],
            "x/logo.svg.license": "SPDX-License-Identifier: CC0-1.0",
        }.items()
    )
    assert terms.licence_of("x/a/b.py", "") == ("MIT", "reuse")
    assert terms.licence_of("x/data/a.csv", "") == ("CC-BY-4.0 AND ODbL-1.0", "reuse")
    assert terms.licence_of("x/data/a/b.csv", "") == ("MIT", "reuse")
    assert terms.licence_of("x/a.py", "# SPDX-License-Identifier: ISC") == ("ISC", "spdx")
    assert terms.licence_of("x/vendored/a.py", "# SPDX-License-Identifier: ISC") == (
        "GPL-3.0-only AND ISC",
        "spdx",
    )
    assert terms.licence_of("x/logo.svg", "<svg/>") == ("CC0-1.0", "spdx")
    assert terms.licence_of("y/a.py", "") == ("", "")


def test_rules_of_dep5_apply_by_path() -> None:
    terms = FolderLicences({".reuse/dep5": DEP5, "LICENSE": APACHE}.items())
    assert terms.licence_of("a/b.py", "") == ("MIT", "reuse")
    assert terms.licence_of("img/a/b.png", "") == ("CC-BY-SA-4.0", "reuse")
    assert terms.licence_of("docs/a.md", "") == ("CC-BY-SA-4.0", "reuse")
    assert terms.licence_of("docs/ab.md", "# SPDX-License-Identifier: ISC") == (
        "ISC AND MIT",
        "spdx",
    )


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        "",
        "annotations = 3",
        '[[annotations]]\nSPDX-License-Identifier = "MIT"',
        '[[annotations]]\npath = 3\nSPDX-License-Identifier = "MIT"',
        '[[annotations]]\npath = "a*b*c*d*e*f*"\nSPDX-License-Identifier = "MIT"',
        '[[annotations]]\npath = "**"\nSPDX-License-Identifier = "what I say"',
        "# " + "x" * 1_100_000,
    ],
)
def test_rules_that_cannot_be_read_make_the_licence_unknown(text: str) -> None:
    terms = FolderLicences({"REUSE.toml": text, "LICENSE": MIT}.items())
    assert terms.licence_of("a.py", "") == ((UNKNOWN_TERMS, "reuse") if text else ("MIT", "file"))
    assert terms.licence_of("a.py", "# SPDX-License-Identifier: ISC") == ("ISC", "spdx")
