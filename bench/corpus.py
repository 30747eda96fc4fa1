"""A corpus beside datatrove: raw files to token shards, one process each, in turns.

stamm does what `stamm run` does from filter to pack, everything on (bench/corpus_stamm.py).
datatrove does FineWeb's filters, MinHash with the same bands, its PII step and its tokenizer with
the same vocabulary (bench/corpus_datatrove.py); it knows nothing of consent, licences or evaluation
texts. Arms:

  stamm, datatrove   both with one extractor, and both asking every filter about every document and
                     dropping none but near duplicates: each stage does the same work
  ..., dropping      as they are used: what one step drops, the next does not see
  trafilatura        datatrove, dropping, with its own extractor (archives only)

Rates are of processor time, all threads and child processes counted, less what the same arm takes
for one short page: imports, models, the snapshot of robots.txt, the index of evaluation texts.

Run      python -m bench.corpus FILE ... --datatrove-python PYTHON --evaluation FILE.jsonl(.zst)
         [--robots SNAPSHOT] [--rounds 3] [--arms stamm datatrove] [--out FILE.jsonl]
         FILEs are all archives or all JSONL; the evaluation set has its passages under "text".
         The other interpreter needs datatrove[io,processing]==0.10.1, resiliparse==2.0.1,
         lxml_html_clean, pycld2 and tokenizers
Prints   a table; with --out appends one JSON line with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stamm.corpus.inputs import is_archive
from stamm.runs.manifest import environment

RESILIPARSE = {"half": "datatrove", "extractor": "resiliparse"}
ARMS: dict[str, dict[str, Any]] = {
    "stamm": {"half": "stamm", "drop": False},
    "datatrove": RESILIPARSE | {"drop": False},
    "stamm, dropping": {"half": "stamm", "drop": True},
    "datatrove, dropping": RESILIPARSE | {"drop": True},
    "trafilatura": {"half": "datatrove", "extractor": "trafilatura", "drop": True},
}
# What both do, by the names that each gives it.
COMPARED = {
    "extract": ("extract", "filter.Resiliparse"),
    "language": ("language", "filter.Cld2"),
    "quality": (
        "quality",
        "filter.GopherRepetitionFilter filter.GopherQualityFilter filter.C4QualityFilter "
        "filter.FineWebQualityFilter",
    ),
    "near duplicates": (
        "dedup decide",
        "signatures.MinhashDedupSignature buckets.MinhashDedupBuckets cluster.MinhashDedupCluster "
        "tokens.MinhashDedupFilter",
    ),
    "personal data": ("pii", "tokens.PIIFormatter"),
    "tokens": ("tokenize pack", "tokens.DocumentTokenizer"),
}
ONE_PAGE = (
    "The library by the station has a room in which old maps are kept. Anyone who asks at the desk "
    "can see them, and those who want to know how the town looked before the railway came will find "
    "that most of the streets have kept their names. The oldest map was drawn with a pen, and it has "
    "a note on the back that says who paid for it and what it cost. A copy hangs in the hall, where "
    "children like to look for the house in which they live. On Fridays the room stays open until "
    "nine. Then a teacher explains how the town has grown. It is free, and you do not have to sign up."
)
Result = dict[str, Any]


class Turns:
    """Runs one arm after another, each in a process of its own and an empty folder."""

    def __init__(self, folder: Path, other_python: str, robots: str, evaluation: str) -> None:
        self._folder = folder
        self._other_python = other_python
        self._told = {"robots": robots, "evaluation": evaluation}
        self._environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def turn(self, arm: str, inputs: Path, tokenizer: Path | None, keep: str = "turn") -> Result:
        """What the arm told about itself, with its wall_s.

        keep   name of the folder it works in; it stays until the next turn of this name
        """
        folder = self._folder / keep
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        half = ARMS[arm]["half"]
        python = sys.executable if half == "stamm" else self._other_python
        plan = ARMS[arm] | self._told | {"inputs": str(inputs), "folder": str(folder)}
        plan |= {"kind": _kind(inputs), "tokenizer": str(tokenizer) if tokenizer else None}
        (folder / "plan.json").write_text(json.dumps(plan))
        began = time.monotonic()
        with (folder / "output.txt").open("w") as output:
            done = subprocess.run(
                [python, "-m", f"bench.corpus_{half}", folder / "plan.json"],
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"{arm} failed:\n{(folder / 'output.txt').read_text()[-3000:]}")
        result: Result = json.loads((folder / "result.json").read_text())
        return result | {"wall_s": result["ended"] - began}


def main() -> None:
    """Take turns, print the table, and append the row."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs, page = folder / "inputs", folder / "page"
        inputs.mkdir()
        page.mkdir()
        for number, file in enumerate(options.files):
            shutil.copy(file, inputs / f"{number:02}_{Path(file).name}")
        _write_page(page, _kind(inputs))
        turns = Turns(folder, options.datatrove_python, options.robots, options.evaluation)
        mine = turns.turn(
            "stamm", inputs, None, keep="first"
        )  # trains the vocabulary, fills the caches
        tokenizer = folder / "first" / "run" / "tokenizer"
        arms = options.arms or [arm for arm in ARMS if _fits(arm, inputs)]
        results: dict[str, list[Result]] = {arm: [] for arm in arms}
        starts: dict[str, list[Result]] = {arm: [] for arm in arms}
        loads = []
        for _ in range(options.rounds):
            for arm in arms:
                loads.append(os.getloadavg()[0])
                starts[arm].append(turns.turn(arm, page, tokenizer))
                results[arm].append(turns.turn(arm, inputs, tokenizer))
    told = {arm: _told(mine, results[arm], starts[arm]) for arm in arms}
    row = {
        "benchmark": "corpus",
        "input": [Path(file).name for file in options.files],
        "documents": mine["documents"],
        "bytes": mine["bytes"],
        "text_bytes": mine["text_bytes"],
        "rounds": options.rounds,
        "load_average": [min(loads), statistics.median(loads), max(loads)],
        "arms": told,
        "compared": _compared(told, mine["text_bytes"]),
        "consent": {
            arm: _consent(results[arm], starts[arm]) for arm in arms if ARMS[arm]["half"] == "stamm"
        },
        **environment(),
    }
    _print(row)
    if options.out:
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")


def _told(mine: Result, results: list[Result], starts: list[Result]) -> Result:
    """An arm's medians, its rates, and its stages in the round whose processor time is median."""
    start = {key: statistics.median(s[key] for s in starts) for key in ("cpu_s", "wall_s")}
    spent = {key: [r[key] - start[key] for r in results] for key in ("cpu_s", "wall_s")}
    cpu_s = statistics.median(spent["cpu_s"])
    return {
        "start_up": start,
        "cpu_s": spent["cpu_s"],
        "wall_s": spent["wall_s"],
        "documents_per_cpu_s": mine["documents"] / cpu_s,
        "mb_per_cpu_s": mine["bytes"] / cpu_s / 1e6,
        "kept": results[0]["kept"],
        "dropped": results[0]["dropped"],
        "token_bytes": results[0]["token_bytes"],
        "stages": {
            name: statistics.median(r["stages"][name] for r in results)
            - statistics.median(s["stages"].get(name, 0.0) for s in starts)
            for name in results[0]["stages"]
        },
    }


def _compared(told: dict[str, Result], text_bytes: int) -> dict[str, dict[str, float]]:
    """Megabytes of text a second of what both do, where each sees every document."""
    rates: dict[str, dict[str, float]] = {}
    arms = [told[arm]["stages"] for arm in ("stamm", "datatrove") if arm in told]
    for stage, names in COMPARED.items():
        spent = [
            sum(stages.get(name, 0.0) for name in own.split())
            for stages, own in zip(arms, names, strict=False)
        ]
        if len(spent) == len(names) and min(spent) > 0:
            rates[stage] = {
                arm: text_bytes / seconds / 1e6
                for arm, seconds in zip(("stamm", "datatrove"), spent, strict=True)
            }
    return rates


def _consent(results: list[Result], starts: list[Result]) -> Result:
    """Seconds of consent, and their share of all that is done for documents.

    The seconds of the filter step count, and finding the robots.txt files of an archive. Reading a snapshot
    costs the same whatever the number of documents, so it stands apart.
    """
    seconds = [r["stages"]["consent"] + r["asides"]["archived_robots"] for r in results]
    whole, start = (
        statistics.median(sum(one["steps"].values()) for one in ones) for ones in (results, starts)
    )
    return {
        "seconds": statistics.median(seconds),
        "share": statistics.median(seconds) / (whole - start),
        "snapshot_seconds": statistics.median(r["asides"]["snapshot"] for r in results),
    }


def _print(row: Result) -> None:
    print(f"{row['documents']} documents, {row['bytes'] / 1e6:.1f} MB; load {row['load_average']}")
    print(
        f"{'arm':<20} {'start':>7} {'CPU s':>8} {'wall s':>8} {'docs/s':>8} {'MB/s':>7} {'kept':>6}"
    )
    for arm, told in row["arms"].items():
        cpu_s, wall_s = (statistics.median(told[key]) for key in ("cpu_s", "wall_s"))
        rates = f"{told['documents_per_cpu_s']:>8.1f} {told['mb_per_cpu_s']:>7.2f}"
        start = told["start_up"]["cpu_s"]
        print(f"{arm:<20} {start:>7.1f} {cpu_s:>8.1f} {wall_s:>8.1f} {rates} {told['kept']:>6}")
    print("\nwall seconds of each stage, without start-up")
    for arm, told in row["arms"].items():
        print(f"{arm}: {_rounded(told['stages'])}")
    print("\nMB of text a second of wall time")
    for stage, rates in row["compared"].items():
        print(f"{stage:<20} {_rounded(rates)}")
    print(f"\nconsent {row['consent']}")


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 2) for name, number in numbers.items()}


def _kind(inputs: Path) -> str:
    kinds = {is_archive(file.name) for file in inputs.iterdir()}
    if len(kinds) != 1:
        raise SystemExit("name archives or JSONL files, not both")
    return "warc" if kinds.pop() else "jsonl"


def _fits(arm: str, inputs: Path) -> bool:
    return arm != "trafilatura" or _kind(inputs) == "warc"


def _write_page(folder: Path, kind: str) -> None:
    """An input of one short page that every arm keeps."""
    if kind == "jsonl":
        row = {"id": "1", "text": ONE_PAGE, "url": "https://example.org/"}
        (folder / "page.jsonl").write_text(json.dumps(row) + "\n")
        return
    html = f"<!DOCTYPE html><html lang='en'><body><main><p>{ONE_PAGE}</p></main></body></html>"
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n{html}"
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: https://example.org/\r\n"
        "WARC-Date: 2026-01-01T00:00:00Z\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000001>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    (folder / "page.warc").write_bytes(f"{head}{http}\r\n\r\n".encode())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--datatrove-python", required=True)
    parser.add_argument("--evaluation", required=True)
    parser.add_argument("--robots", default="package:robots.jsonl.zst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", choices=ARMS)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
