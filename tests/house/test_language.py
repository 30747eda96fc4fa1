"""The package and its documents use the field's terms: what is banned, and what must be there.

`tests/house/language_allowance.json` holds what is still to be rewritten, and only shrinks.
`python -m tools.language --list src/stamm/FOLDER` shows each hit with what to write instead;
`python -m tools.language` writes the smaller counts back.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools.language import ROOT, SOURCE, allowed, findings, grown, vague_names

COMMAND = "python -m tools.language"


def test_no_banned_phrase_or_name_is_added_and_no_term_lost() -> None:
    lines = grown(findings(), allowed())
    assert not lines, (
        "\n".join(lines) + f"\n`{COMMAND} --list PATH` shows each hit; a file that was only moved"
        f" is accepted by `{COMMAND}`"
    )


def test_the_allowance_shrinks_with_what_was_rewritten() -> None:
    lines = grown(allowed(), findings())
    assert not lines, f"{len(lines)} were rewritten: run `{COMMAND}`\n" + "\n".join(lines[:20])


def test_an_assignment_to_a_vague_name_is_counted() -> None:
    """Loop variables, captures and walruses are some; fields, arguments and pairs are not."""
    source = """
class Row:
    found: int
    def read(self, place):
        left, right = self.ends
        zero, one = 0, 1
        found = [each for each in place if (left := each)]
        with open(place) as one:
            match one:
                case [left, *found]:
                    pass
left = 1
def rest(right): left = right
"""
    counted = [name for _, name in sorted(vague_names(ast.parse(source)))]
    assert counted == ["each", "found", "found", "left"]


def _documents() -> list[Path]:
    pages = [p for p in sorted((ROOT / "docs").rglob("*.md")) if "log" not in p.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]


def test_links_of_documents_lead_to_files() -> None:
    missing = []
    for page in _documents():
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        missing += [
            f"{page.relative_to(ROOT)}: {p}" for p in links if not (page.parent / p).exists()
        ]
    assert not missing, missing


def test_files_that_documents_name_exist() -> None:
    """Paths in backticks that end in .py, or name a test or a folder of the package."""
    missing = []
    for page in _documents():
        for path in re.findall(r"`((?:[\w.]+/)+(?:[\w.]+\.py)?)(?:[:: ][^`]*)?`", page.read_text()):
            top = path.split("/")[0]
            known = (SOURCE / top).is_dir() or top in ("tests", "bench", "tools", "src")
            if known and not any((base / path).exists() for base in (ROOT, SOURCE)):
                missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert not missing, missing
