"""The results table of docs/gpu.md, made from bench/results/gpu-*.jsonl.

Run   python -m bench.gpu_page   to write it; a test fails when page and results differ
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu.md"
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- results: written by bench/gpu_page.py -->", "<!-- end of results -->"
NONE = "Not measured yet: there is no file `bench/results/gpu-*.jsonl`."
HEADER = ("what", "case", "shape", "p50 (p20 - p80)", "found", "limit", "kept")
MANY = "every entry"  # told as one row for each pass, with the worst by name

Line = dict[str, Any]


def table(files: Sequence[Path]) -> str:
    """A section for each file, by device; NONE where there is no file."""
    sections = [_section([json.loads(t) for t in f.read_text().splitlines()]) for f in files]
    return "\n\n".join(sections) or NONE


def found() -> list[Path]:
    """The files that `make gpu` wrote, in the order of their names."""
    return sorted(RESULTS.glob("gpu-*.jsonl"))


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before + BEGIN, inside.strip(), END + after


def cells(line: Line) -> list[str]:
    """A result as the cells of a row."""
    kept = {True: "yes", False: "**no**", None: "not run" if line["not_run"] else ""}[line["met"]]
    shape = " × ".join(f"{size:,}" for size in line["shape"])
    return [
        line["benchmark"], line["case"], shape, _spread(line), _told(line), _limit(line), kept,
    ]  # fmt: skip


def row(line: Line) -> str:
    """A result as one line of text."""
    return " | ".join(cell for cell in cells(line) if cell).replace("**", "")


def main() -> None:
    """Write the table into the page."""
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}\n\n{table(found())}\n\n{after}")


def _section(lines: list[Line]) -> str:
    first = lines[0]
    commits = sorted({_commit(line) for line in lines})
    facts = f"Driver {first['driver']}, torch {first['torch']}, Triton {first['triton']}, "
    facts += f"commit {', '.join(commits)}."
    rows = [cells(line) for line in lines if line["benchmark"] != MANY]
    for which in ("forward", "backward"):
        many = [n for n in lines if n["benchmark"] == MANY and n["case"].endswith(which)]
        if many:
            rows.append(_many(which, many))
    text = ["| " + " | ".join(cell.replace("|", "/") for cell in r) + " |" for r in rows]
    head = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join([f"### {first['device']}", "", facts, "", *head, *text])


def _many(which: str, lines: list[Line]) -> list[str]:
    """All entries but xielu in one row, with the slowest by name."""
    ordered = sorted(lines, key=lambda line: float(line["ratio"]))
    low, middle = ordered[0], ordered[len(ordered) // 2]
    kept = sum(line["met"] is True for line in lines)
    name = low["case"].rpartition(" ")[0]
    told = f"median {middle['ratio']:.3f}, lowest {low['ratio']:.3f} ({name}) {low['told']}"
    spread = f"{_spread(ordered[-1])} to {_spread(low)}"
    shape = cells(low)[2]
    return [MANY, which, shape, spread, told, _limit(low), f"{kept} of {len(lines)}"]


def _commit(line: Line) -> str:
    commit = (line["commit"] or "unknown")[:12]
    return f"{commit} with changes" if line.get("dirty") else commit


def _spread(line: Line) -> str:
    if "p50" not in line:
        return ""
    p20, p50, p80 = (1000 * line[name] for name in ("p20", "p50", "p80"))
    return f"{p50:.4g} ({p20:.4g} - {p80:.4g}) ms"


def _told(line: Line) -> str:
    number = "" if line["ratio"] is None else f"{line['ratio']:.3f} "
    told = [f"{number}{line['told']}", line["not_run"]]
    return ": ".join(text for text in told if text)


def _limit(line: Line) -> str:
    limit = line["limit"]
    if limit is None:
        return ""
    word = "at least" if "at_least" in limit else "at most"
    number = limit.get("at_least", limit.get("at_most"))
    unit = {"p50": " s", "took": " s", "failed": " failed"}.get(limit["of"], "")
    return f"{word} {number:g}{unit}"


if __name__ == "__main__":
    main()
