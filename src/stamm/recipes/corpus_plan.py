"""Cost of a corpus at scale, extrapolated from the rates of a finished run on this machine.

Time and disk are assumed to grow with input bytes, which holds for every step but sorting
(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json

# One dump of Common Crawl, WARC under gzip: "on the order of 75TB" (Thompson 2024, arXiv 2404.09770).
DUMP_BYTES = 75 * 10**12
SCALES: tuple[tuple[str, int], ...] = (
    ("1 TB of input", 10**12),
    ("100 dumps of Common Crawl (75 TB each)", 100 * DUMP_BYTES),
)
_CORES = (64, 1024, 16384)
_HOUR = 3600.0
# The tokenizer is trained on a sample, which does not grow with the corpus.
_SAMPLED = ("tokenizer", "all")
_KEEPING = ("filter", "finalize", "tokenize", "pack")


@dataclass(frozen=True, kw_only=True)
class WorkShare:
    """One part of a step: its share of all core time, and its rates.

    bytes_per_s    input bytes per second and core
    records_per_s  records per second and core
    """

    step: str
    name: str
    share: float
    bytes_per_s: float
    records_per_s: float


def corpus_plan(run: Path) -> dict[str, Any]:
    """The plan as JSON values, from the rates measured by the run in `run`.

    Raises   DataError when the run has no rates: it is not finished, or did no work.
    """
    path = run / "log" / "rates.json"
    if not path.is_file():
        raise DataError(
            f"{run} has no measured rates",
            fix="Run the recipe once, on a sample of the input; then plan it with the same --out",
        )
    rates = read_json(path)
    try:
        size, records = rates["filter"]["input_bytes"], rates["filter"]["records"]
        seconds = _seconds(rates, run)
        total = sum(seconds.values())
        growing = total - seconds.get(_SAMPLED, 0.0)
        parts = [
            WorkShare(
                step=step,
                name=name,
                share=spent / total,
                bytes_per_s=size / spent,
                records_per_s=records / spent,
            )
            for (step, name), spent in sorted(seconds.items(), key=lambda item: -item[1])
            if spent > 0
        ]
        disk = sum(rates[step]["output_bytes"] for step in _KEEPING if step in rates) / size
    except (KeyError, TypeError, ZeroDivisionError):
        raise DataError(
            f"{path} does not hold the rates of a whole corpus",
            fix="Run the recipe in a new folder, and plan it with the same --out",
        ) from None
    return {
        "measured": {"run": str(run), "input_bytes": size, "records": records},
        "bytes_per_core_second": size / growing,
        "records_per_core_second": records / growing,
        "bottleneck": {"step": parts[0].step, "part": parts[0].name, "share": parts[0].share},
        "parts": [vars(part) for part in parts],
        "scales": [_scale(name, wanted, growing / size, disk) for name, wanted in SCALES],
    }


def _seconds(rates: dict[str, Any], run: Path) -> dict[tuple[str, str], float]:
    """Core seconds by step and part; a step without parts is one part, "all"."""
    seconds: dict[tuple[str, str], float] = {}
    for step, times in rates.items():
        spent = dict(times["worker_seconds"])
        whole = spent.pop("all")
        for name, part in spent.items():
            seconds[step, name] = part
        seconds[step, "rest" if spent else "all"] = max(0.0, whole - sum(spent.values()))
    for path in sorted((run / "steps").glob("*.json")):
        receipt = read_json(path)
        if receipt["step"] in ("global_filter", "tokenizer"):
            seconds[receipt["step"], "all"] = float(receipt["seconds"])
    return seconds


def _scale(name: str, wanted: int, seconds_per_byte: float, disk: float) -> dict[str, Any]:
    core_hours = wanted * seconds_per_byte / _HOUR
    return {
        "input": name,
        "input_bytes": wanted,
        "core_hours": core_hours,
        "hours": {str(cores): core_hours / cores for cores in _CORES},
        "disk_bytes": round(wanted * disk),
    }
