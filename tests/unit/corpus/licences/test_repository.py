"""Licence detection for repositories: licence texts, choices, parts and SPDX lines."""

from __future__ import annotations

import io
import json
import random
from importlib import resources

import pytest
import zstandard

from stamm.corpus.licences.expression import spdx_identifier
from stamm.corpus.licences.families import UNKNOWN_TERMS, rank
from stamm.corpus.licences.repository import (
    identify_licences,
    repository_licence,
    spdx_line_licence,
)

PACKED = (resources.files("stamm.corpus.licences") / "texts.jsonl.zst").read_bytes()
ROWS = zstandard.open(io.BytesIO(PACKED), "rt", encoding="utf-8").read().splitlines()
TEXTS: dict[str, str] = {row["id"]: row["text"] for row in map(json.loads, ROWS)}
MIT, APACHE, GPL = TEXTS["MIT"], TEXTS["Apache-2.0"], TEXTS["GPL-3.0-only"]


def of(**files: str) -> str:
    return repository_licence(files.items()).expression


def test_every_text_shipped_is_a_licence_of_the_table() -> None:
    assert len(TEXTS) >= 60
    for name in TEXTS:
        assert spdx_identifier(name) == name
        assert rank(name) >= 0


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_each_text_is_identified_in_another_layout(name: str) -> None:
    words = TEXTS[name].split()
    lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
    noisy = "Copyright (c) 2019-2024 Somebody and Others\n\n" + "\n  * ".join(lines).upper()
    found = identify_licences(noisy)
    assert found.licences == (name,)
    assert not found.has_more


def test_names_of_holders_do_not_matter() -> None:
    own = TEXTS["BSD-3-Clause"].replace("the copyright holder", "Example University, Inc.")
    assert of(LICENSE=own) == "BSD-3-Clause"
    isc = TEXTS["ISC"].replace("ISC DISCLAIMS", "THE AUTHOR DISCLAIMS")
    assert of(LICENSE=isc.replace("SHALL ISC", "SHALL THE AUTHOR")) == "ISC"


def test_several_licences_hold_together_unless_one_may_choose() -> None:
    assert of(LICENSE=f"{MIT}\n\n{APACHE}") == "Apache-2.0 AND MIT"
    assert of(**{"LICENSE-MIT": MIT, "LICENSE-APACHE": APACHE}) == "Apache-2.0 AND MIT"
    readme = "Licensed under either of Apache-2.0 or MIT at your option."
    files = {"LICENSE-MIT": MIT, "LICENSE-APACHE": APACHE, "README.md": readme}
    assert of(**files) == "Apache-2.0 OR MIT"
    assert of(**{"README.md": readme}) == ""
    # The licences' own words, "at your option any later version" too, offer no choice of licence.
    for name in sorted(TEXTS):
        if name not in ("MIT", "0BSD"):
            assert " OR " not in of(LICENSE=f"{MIT}\n\n{TEXTS[name]}"), name
    assert of(**{"LICENSES/MIT.txt": MIT, "LICENSES/CC0-1.0.txt": TEXTS["CC0-1.0"]}) == (
        "CC0-1.0 AND MIT"
    )


def test_terms_of_its_own_are_not_overlooked() -> None:
    clause = " ".join(f"word{i} must not sell the thing" for i in range(30))
    assert of(LICENSE=f"{MIT}\n\n{clause}") == f"{UNKNOWN_TERMS} AND MIT"
    assert of(LICENSE=clause) == UNKNOWN_TERMS
    assert of(LICENSE="You may read this.") == UNKNOWN_TERMS
    assert of(COPYRIGHT="Anna and Bertha", LICENSE=MIT) == "MIT"
    assert of(LICENSE="") == ""
    assert of(LICENSE="All rights reserved.") == "LicenseRef-All-Rights-Reserved"


def test_licences_of_others_and_code_named_so_are_not_the_repositorys() -> None:
    assert of(**{"vendor/x/LICENSE": MIT, "docs/COPYING": GPL}) == ""
    assert of(**{"license.py": "def licence(): ...", "LICENSE": MIT}) == "MIT"


def test_a_short_file_may_point() -> None:
    assert of(LICENSE="See https://creativecommons.org/licenses/by-sa/4.0/") == "CC-BY-SA-4.0"
    assert of(LICENSE="SPDX-License-Identifier: MIT OR Apache-2.0") == "Apache-2.0 OR MIT"


def test_spdx_lines_of_sources() -> None:
    assert of(**{"a.py": "# SPDX-License-Identifier: MIT\nx = 1"}) == "MIT"
    assert of(**{"a.c": "/* SPDX-License-Identifier: GPL-2.0 */", "LICENSE": MIT}) == (
        "GPL-2.0-only AND MIT"
    )
    choice = {"LICENSE-MIT": MIT, "LICENSE-APACHE": APACHE}
    rust = {"src/a.rs": "// SPDX-License-Identifier: Apache-2.0 OR MIT"}
    assert of(**choice, **rust) == "Apache-2.0 OR MIT"
    assert of(**{"a.html": "<!-- SPDX-License-Identifier: CC-BY-4.0 -->"}) == "CC-BY-4.0"
    assert of(**{"a.py": "# SPDX-License-Identifier: my own words"}) == UNKNOWN_TERMS
    assert of(**{"a.py": "x\n" * 9000 + "# SPDX-License-Identifier: MIT"}) == ""


SPDX = "SPDX-License-Identifier"


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (f"/* {SPDX}: MIT */ /* {SPDX}: GPL-3.0-only */", "GPL-3.0-only AND MIT"),
        (f"<!-- {SPDX}: MIT --><!-- {SPDX}: GPL-3.0-only -->", "GPL-3.0-only AND MIT"),
        (f"# {SPDX}: MIT {SPDX}: ISC", "ISC AND MIT"),
        (f"# {SPDX}: MIT; {SPDX}: ISC", f"ISC AND {UNKNOWN_TERMS}"),
        (f"// {SPDX} : GPL-3.0-only", "GPL-3.0-only"),
        (f"/* {SPDX}:\n * GPL-3.0-only */", UNKNOWN_TERMS),
        (f"# a\r# {SPDX}: MIT\r# {SPDX}: ISC\rx = 1", "ISC AND MIT"),
        (f'__license__ = "{SPDX}: GPL-3.0-only"', "GPL-3.0-only"),
        (f'{{"{SPDX}": "GPL-3.0-only"}}', "GPL-3.0-only"),
        (f'x = ""  # {SPDX}: GPL-3.0-only', "GPL-3.0-only"),
        (f'find("x")  # {SPDX}: GPL-3.0-only', "GPL-3.0-only"),
        (f'LINE = "{SPDX}: GPL-3.0-only"', ""),
        (f'printf "{SPDX}: MIT {SPDX}: ISC"', ""),
        ("x" * 300 + f" /* {SPDX}: ISC */", "ISC"),
        ("#" * (3999 - len(SPDX)) + f"{SPDX}: MIT AND ISC", "ISC AND MIT"),
        (f"# {SPDX}: MIT" + " OR MIT" * 100 + " AND ISC", UNKNOWN_TERMS),
    ],
)
def test_every_spdx_line_is_read_or_unknown(text: str, expression: str) -> None:
    assert spdx_line_licence(text) == expression


def test_order_of_files_does_not_matter() -> None:
    files = [("LICENSE-MIT", MIT), ("LICENSE-APACHE", APACHE), ("COPYING", GPL)]
    files += [(f"{i}.py", f"# SPDX-License-Identifier: {n}") for i, n in enumerate(("MIT", "ISC"))]
    first = repository_licence(files)
    for seed in range(5):
        random.Random(seed).shuffle(files)
        assert repository_licence(files) == first


def test_hostile_files_are_bounded() -> None:
    many = [(f"{i}.py", f"# SPDX-License-Identifier: LicenseRef-{i}") for i in range(2000)]
    found = repository_licence(many)
    assert found.expression == UNKNOWN_TERMS
    assert len(found.evidence) == 8
    for text in ("a " * 1_000_000, "either " * 60_000, "dual license " * 10_000, "(" * 400_000,
                 "SPDX-License-Identifier: " * 10_000, MIT * 300):  # fmt: skip
        # A step quadratic in these lengths would run into the time limit of a test.
        repository_licence([("LICENSE", text), ("README", text)])
