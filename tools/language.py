"""Count banned phrases and names, missing terms, class names used twice and vague local names.

    python -m tools.language                  shrink the allowance to what is found today
    python -m tools.language --list PATH ...  show each hit in files or folders, and what to write

`tests/house/language_allowance.json` holds what was there when the rules came. It only shrinks:
the command refuses to let a folder's count grow. After a change of the rules themselves,
`--rules-changed` accepts what is found. On a merge conflict in that file, take either side and
run the command.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import language_rules as rules

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stamm"
ALLOWANCE = ROOT / "tests" / "house" / "language_allowance.json"
TEMPLATES = (".html", ".css", ".h", ".cpp")

# kind of finding -> folder -> finding -> how often
Counts = dict[str, dict[str, dict[str, int]]]


def _files() -> list[Path]:
    """Every file whose text is checked: the package without generated code, and the documents."""
    inside = sorted(f for f in SOURCE.rglob("*") if f.suffix in (".py", *TEMPLATES))
    pages = sorted(f for f in (ROOT / "docs").rglob("*.md") if "log" not in f.parts)
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]
    return [f for f in inside if "generated" not in f.parts] + documents


def _area(file: Path) -> str:
    """The folder of a file that counts are summed over: a package of src/stamm, or "documents"."""
    if not file.is_relative_to(SOURCE):
        return "documents"
    inside = file.relative_to(SOURCE).parts
    return inside[0] if len(inside) > 1 else "stamm"


@dataclass(frozen=True)
class _Python:
    """What one Python file holds: (line, text) of strings, docstrings and comments, and names."""

    strings: list[tuple[int, str]]
    docstrings: list[tuple[int, str]]
    comments: list[tuple[int, str]]
    classes: list[str]
    public_classes: list[str]
    functions: list[str]
    vague_names: list[tuple[int, str]]


def _comments(text: str, within_strings: set[int]) -> list[tuple[int, str]]:
    """Comments with their first lines; those of neighbouring lines are one text."""
    blocks: list[tuple[int, str]] = []
    last = -1
    for line, content in enumerate(text.split("\n"), 1):
        comment = re.search(r"(?:^\s*|  )#[: ]?\s*(\S.*)$", content)
        if comment is None or line in within_strings:
            continue
        if line == last + 1:
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {comment[1]}")
        else:
            blocks.append((line, comment[1]))
        last = line
    return blocks


def _assigned(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every assignment inside a node; loop variables and captures are some."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.lineno, inner.id
        elif isinstance(inner, (ast.MatchAs, ast.MatchStar)) and inner.name:
            yield inner.lineno, inner.name


def vague_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every assignment to one of `rules.LOCALS` outside class bodies."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.ClassDef):  # its own assignments are fields
            waiting += [n for n in statement.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
            continue
        assigned = list(_assigned(statement))
        known = {name for _, name in assigned}
        known.update(inner.arg for inner in ast.walk(statement) if isinstance(inner, ast.arg))
        for line, name in assigned:
            if name in rules.LOCALS and rules.COUNTERPARTS.get(name) not in known:
                yield line, name


@cache
def _python(file: Path) -> _Python:
    text = file.read_text()
    tree = ast.parse(text)
    held = _Python([], [], [], [], [], [], sorted(vague_names(tree)))
    pieces: set[ast.AST] = set()  # of formatted strings: one text, {} in the place of each value
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if documented := ast.get_docstring(node):
                held.docstrings.append((getattr(node, "lineno", 1), documented))
            if isinstance(node, ast.ClassDef):
                held.classes.append(node.name)
            elif isinstance(node, ast.FunctionDef):
                held.functions.append(node.name)
        elif isinstance(node, ast.JoinedStr):
            pieces.update(node.values)
            values = [str(getattr(v, "value", "")) for v in node.values]
            kinds = [isinstance(v, ast.Constant) for v in node.values]
            joined = "".join(v if k else "{}" for v, k in zip(values, kinds, strict=True))
            held.strings.append((node.lineno, joined))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces:
            held.strings.append((node.lineno, node.value))
            lines.update(range(node.lineno, (node.end_lineno or node.lineno)))
    held.public_classes.extend(
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    held.comments.extend(_comments(text, lines))
    return held


@cache
def hits(file: Path) -> tuple[tuple[int, str, str], ...]:
    """Each banned phrase of one file: line where its text begins, excerpt, what to write."""
    held = _python(file) if file.suffix == ".py" else None
    if held:
        texts = held.strings + held.comments
    else:
        texts = list(enumerate(file.read_text().split("\n"), 1))
    plain = [re.sub(r"\s+", " ", piece) for _, piece in texts]
    separator = "\x00" if held else " "  # a sentence of a page continues on its next line
    ends = list(itertools.accumulate(len(piece) + 1 for piece in plain))
    joined = separator.join(plain)
    lower = joined.lower()  # patterns are in lower case; twice as fast as ignoring case
    if len(lower) != len(joined):
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in joined)
    banned = []
    for pattern, instead in rules.PHRASES.items():
        for match in re.finditer(pattern, lower):
            line = texts[bisect.bisect(ends, match.start())][0]
            around = joined[max(0, match.start() - 40) : match.end() + 40]
            excerpt = around.replace("\x00", " | ")
            banned.append((line, excerpt, f"{match.group()!r}: {instead}"))
    for line, piece in held.docstrings if held else ():
        if re.match(rules.DOCSTRING_START, piece):
            banned.append((line, piece[:60], rules.DOCSTRING_START_INSTEAD))
    return tuple(sorted(banned))


def _names(file: Path) -> Iterator[tuple[str, str]]:
    """Banned names of one file: kind ("modules", "classes", "functions") and name."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    for part in parts[-1:] if parts[-1] != "__init__" else parts[-2:-1]:
        if part in rules.MODULES:
            yield "modules", part
    held = _python(file)
    yield from (("classes", name) for name in held.classes if name.lstrip("_") in rules.CLASSES)
    for name in held.functions:
        if name in rules.FUNCTIONS or re.search(rules.FUNCTION_AFFIXES, name):
            yield "functions", name


def _missing_terms() -> Iterator[tuple[str, str]]:
    """Required terms that are missing: path and term."""
    for term, paths in rules.TERMS.items():
        pattern = re.compile(re.sub(r"[ -]", r"(?:[\\s_-]|\\s# )+", term), re.IGNORECASE)
        for path in paths:
            at = SOURCE / path
            files = sorted(at.rglob("*.py")) if at.is_dir() else [at]
            if not any(f.is_file() and pattern.search(f.read_text()) for f in files):
                yield path, term


def _shared_class_names() -> Iterator[tuple[Path, str]]:
    """Public classes whose name another file of the package uses too."""
    where: dict[str, set[Path]] = defaultdict(set)
    for file in _files():
        if file.suffix == ".py":
            for name in _python(file).public_classes:
                where[name].add(file)
    for name, files in sorted(where.items()):
        if len(files) > 1:
            for file in files:
                yield file, name


@cache
def findings() -> Counts:
    """All findings of today, as the allowance holds them; vague names are counted by folder."""
    counts: Counts = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for file in _files():
        name = str(file.relative_to(ROOT))
        if number := len(hits(file)):
            counts["phrases"][_area(file)][name] = number
        if file.suffix == ".py":
            for kind, banned in _names(file):
                counts[kind][_area(file)][f"{name}: {banned}"] += 1
            for _, vague in _python(file).vague_names:
                counts["vague names"][_area(file)][f"{_area(file)}: {vague}"] += 1
    for path, term in _missing_terms():
        counts["missing terms"][path.split("/")[0]][f"{path}: {term}"] = 1
    for file, shared in _shared_class_names():
        counts["shared class names"][_area(file)][f"{file.relative_to(ROOT)}: {shared}"] = 1
    return {
        kind: {area: dict(sorted(counts[kind][area].items())) for area in sorted(counts[kind])}
        for kind in sorted(counts)
    }


def allowed() -> Counts:
    """The findings that the allowance file still permits."""
    permitted: Counts = json.loads(ALLOWANCE.read_text())
    return permitted


def grown(now: Counts, before: Counts) -> list[str]:
    """Findings that `before` does not permit, one line each; empty when nothing grew."""
    lines = []
    for kind, areas in now.items():
        for area, entries in areas.items():
            permitted = before.get(kind, {}).get(area, {})
            for name, number in entries.items():
                if number > permitted.get(name, 0):
                    lines.append(f"{kind}: {name}: {number}, allowed {permitted.get(name, 0)}")
    return lines


def _area_growth(now: Counts, before: Counts) -> list[str]:
    """Folders whose sum grew: a file that is moved or split keeps its allowance within one."""
    lines = []
    for kind, areas in now.items():
        for area, entries in areas.items():
            old = sum(before.get(kind, {}).get(area, {}).values())
            if (new := sum(entries.values())) > old:
                lines.append(f"{kind} in {area}: {new}, allowed {old}")
    return lines


def _show(paths: list[str]) -> int:
    number = 0
    for file in _files():
        name = file.relative_to(ROOT)
        if any(name.is_relative_to(path) for path in paths):
            for line, excerpt, instead in hits(file):
                number += 1
                print(f"{name}:{line}: …{excerpt}…\n    {instead}")
            for line, vague in _python(file).vague_names if file.suffix == ".py" else ():
                number += 1
                print(f"{name}:{line}: variable {vague!r}\n    {rules.LOCALS[vague]}")
    for kind, areas in findings().items():
        for entries in areas.values():
            for entry in entries if kind not in ("phrases", "vague names") else ():
                path = entry.split(": ")[0]
                inside = path if path.startswith("src/") else f"src/stamm/{path}"
                if any(Path(inside).is_relative_to(asked) for asked in paths):
                    number += 1
                    print(f"{kind}: {entry}")
    print(f"{number} findings")
    return 0


def main(arguments: list[str]) -> int:
    """Run the command; 1 when the allowance would have to grow."""
    parser = argparse.ArgumentParser(prog="python -m tools.language", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", nargs="+", metavar="PATH", help="show the hits, write nothing")
    parser.add_argument("--rules-changed", action="store_true", help="accept what is found")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        return _show(chosen.list)
    now = findings()
    if not chosen.rules_changed:
        try:
            before = allowed()
        except ValueError:
            print(f"{ALLOWANCE} is not JSON: take one side of the merge conflict first")
            return 1
        if lines := _area_growth(now, before):
            print("\n".join([*grown(now, before), *lines, "Rewrite these, then run it again."]))
            return 1
    ALLOWANCE.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    totals = {kind: sum(sum(e.values()) for e in areas.values()) for kind, areas in now.items()}
    print(", ".join(f"{kind}: {number}" for kind, number in totals.items()) or "nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
