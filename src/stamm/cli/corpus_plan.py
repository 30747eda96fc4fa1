"""`stamm plan corpus.…`: cores, hours and disk at scale, from the rates of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stamm.base.units import bytes_text, count_text, seconds_text
from stamm.cli.output import print_json, print_pairs, print_table, print_text
from stamm.recipes.corpus_plan import corpus_plan

_SMALL = 0.001


def show_corpus_plan(run: Path, as_json: bool) -> int:
    """Print the plan with the rates measured by the run in `run`."""
    plan = corpus_plan(run)
    if as_json:
        print_json(plan)
        return 0
    measured, bottleneck = plan["measured"], plan["bottleneck"]
    print_pairs(
        [
            ("measured", f"{measured['run']}: {bytes_text(measured['input_bytes'])} of input files, "
                         f"{measured['records']:,} records"),
            ("rate", f"{bytes_text(plan['bytes_per_core_second'])}/s and "
                     f"{plan['records_per_core_second']:.3g} records/s a core, all steps together"),
            ("bottleneck", f"{bottleneck['step']}, {bottleneck['part']}: "
                           f"{bottleneck['share']:.0%} of all core time"),
        ]
    )  # fmt: skip
    print()
    print_table(["step", "part", "share of time", "input/s/core", "records/s/core"], _parts(plan))
    print()
    header = ["input", "core hours", *(f"on {n} cores" for n in plan["scales"][0]["hours"]), "disk"]
    print_table(header, [_scale(scale) for scale in plan["scales"]])
    print_text(
        "",
        "Time and disk are assumed to grow with input bytes. Training the tokenizer, which reads a "
        "sample, is not included.",
    )
    return 0


def _parts(plan: dict[str, Any]) -> list[list[str]]:
    return [
        [
            part["step"],
            part["name"],
            f"{part['share']:.1%}",
            bytes_text(part["bytes_per_s"]),
            count_text(part["records_per_s"]),
        ]
        for part in plan["parts"]
        if part["share"] >= _SMALL
    ]


def _scale(scale: dict[str, Any]) -> list[str]:
    return [
        scale["input"],
        count_text(scale["core_hours"]),
        *(seconds_text(3600 * hours) for hours in scale["hours"].values()),
        bytes_text(scale["disk_bytes"]),
    ]
