"""Builds the licence texts and identifiers that stamm ships, from the SPDX licence list.

Usage: python tools/build_licence_texts.py FOLDER

FOLDER holds a checkout of github.com/spdx/license-list-XML. Written are texts.jsonl.zst, the
commonest licences' own texts, and identifiers.json, the identifiers of all licences and exceptions.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import zstandard

OUTPUT = Path(__file__).resolve().parents[1] / "src" / "stamm" / "corpus" / "licences"
COMMON = """
0BSD AFL-3.0 AGPL-3.0-only Apache-1.1 Apache-2.0 Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause
BSD-2-Clause BSD-3-Clause BSD-3-Clause-Clear BSD-4-Clause BSL-1.0 BUSL-1.1 CC-BY-3.0 CC-BY-4.0
CC-BY-SA-3.0 CC-BY-SA-4.0 CC-BY-NC-4.0 CC-BY-NC-SA-4.0 CC-BY-NC-ND-4.0 CC-BY-ND-4.0 CC0-1.0
CDDL-1.0 CECILL-2.1 EPL-1.0 EPL-2.0 EUPL-1.2 GFDL-1.3-only GPL-2.0-only GPL-3.0-only ISC
LGPL-2.1-only LGPL-3.0-only MIT MIT-0 MPL-1.1 MPL-2.0 MS-PL MulanPSL-2.0 NCSA ODbL-1.0 OFL-1.1
OSL-3.0 PostgreSQL PSF-2.0 Python-2.0 Ruby SSPL-1.0 Unicode-3.0 Unlicense UPL-1.0 Vim WTFPL X11
Zlib ZPL-2.1 Elastic-2.0 PolyForm-Noncommercial-1.0.0 HPND MIT-CMU JSON ODC-By-1.0 PDDL-1.0
"""
_LICENCE = re.compile(r'<license\b[^>]*\blicenseId="([^"]+)"')
_EXCEPTION = re.compile(r'<exception\b[^>]*\blicenseId="([^"]+)"')


def main(folder: Path) -> None:
    """Writes both files; same checkout, same bytes."""
    texts = folder / "test" / "simpleTestForGenerator"
    rows = [
        {"id": name, "text": (texts / f"{name}.txt").read_text(encoding="utf-8")}
        for name in sorted(COMMON.split())
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    packed = zstandard.ZstdCompressor(level=19).compress(lines.encode())
    (OUTPUT / "texts.jsonl.zst").write_bytes(packed)
    licences, exceptions = set(), set()
    for file in sorted((folder / "src").rglob("*.xml")):
        text = file.read_text(encoding="utf-8")
        licences.update(_LICENCE.findall(text))
        exceptions.update(_EXCEPTION.findall(text))
    names = {"licences": sorted(licences), "exceptions": sorted(exceptions)}
    (OUTPUT / "identifiers.json").write_text(json.dumps(names, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
