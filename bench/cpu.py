"""Every benchmark of a CPU that the README quotes, with the machine's vectors and with AVX2's.

Run      make bench, or python -m bench.cpu [--capability native avx2] [--only PART ...] [--quick]
         [--out FOLDER]
Prints   the benchmarks' own tables
Writes   cpu-PROCESSOR-CAPABILITY.jsonl in bench/results or FOLDER: one JSON line per result, with the
         processor, its capability and the commit. Parts that are measured again replace their lines.
         `--quick` writes below build/: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.capability import AVX2, NATIVE, check, environment_of
from stamm.base.processor import cpu_name

ROOT = Path(__file__).parents[1]
_STAMM = ["-m", "stamm", "bench"]
# Part: the name its lines carry, the command without --out, and what --quick adds.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "activations": (
        [
            *(*_STAMM, "activations", "xielu", "swiglu", "--rounds", "3"),
            *("--dtype", "bfloat16", "--dtype", "float32"),
        ],
        ["--shape", "64x1024", "--rounds", "2", "--no-compile"],
    ),
    "sizes": (["-m", "bench.sizes"], ["--quick"]),
    "attention": (["-m", "bench.attention"], ["--quick"]),
    "optimizer": (["-m", "bench.optimizer"], ["--quick"]),
    "sampling": (
        ["-m", "bench.sampling", "--threads", "2"],
        ["--rounds", "1", "--tokens", "12", "--sizes", "small"],
    ),
    "trainers": (
        [
            *("-m", "bench.trainers", "--models", "llama", "apertus", "--threads", "2"),
            *("--arms", "stamm", "trainer", "trainer-compiled"),
            *("--rounds", "2", "--steps", "8", "--no-commands"),
        ],
        ["--rounds", "1", "--steps", "1", "--arms", "stamm"],
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts with each capability, one after the other; 1 where one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--capability", nargs="+", choices=(NATIVE, AVX2), default=[NATIVE, AVX2])
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="another than bench/results")
    options = parser.parse_args(words)
    failed = 0
    for capability in options.capability:
        named = check(capability)
        if capability == AVX2 and named == check(NATIVE) and NATIVE in options.capability:
            print("This machine's own vectors are AVX2's: nothing is measured twice.")
            continue
        place = options.out or ROOT / ("build/bench" if options.quick else "bench/results")
        place.mkdir(parents=True, exist_ok=True)
        for part in options.only:
            print(f"\n== {part}, {named}", flush=True)
            failed += not _measure(
                part, capability, place / results_name(cpu_name(), named), options
            )
    return 1 if failed else 0


def results_name(processor: str, capability: str) -> str:
    """cpu-intel-xeon-avx512.jsonl for "Intel(R) Xeon(R) Processor" and "AVX512"."""
    plain = re.sub(r"\([a-z]*\)|\bprocessor\b|\bcpu\b|@.*", " ", processor.lower())
    return "-".join(["cpu", *re.findall("[a-z0-9]+", plain), capability.lower()]) + ".jsonl"


def _measure(part: str, capability: str, out: Path, options: argparse.Namespace) -> bool:
    """Whether the part ran; its lines replace those of an earlier time."""
    command, quick = PARTS[part]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "lines.jsonl"
        words = [sys.executable, *command, *(quick if options.quick else []), "--out", str(made)]
        began = time.perf_counter()
        variables = environment_of(capability) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        done = subprocess.run(words, cwd=ROOT, env=variables, check=False)
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
        if done.returncode:
            print(f"{part} ended with {done.returncode}: its earlier lines stay", file=sys.stderr)
            return False
        lines = [{"part": part, **json.loads(line)} for line in made.read_text().splitlines()]
    before = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    kept = [line for line in before if line["part"] != part]
    out.write_text("".join(json.dumps(line) + "\n" for line in [*kept, *lines]))
    return True


if __name__ == "__main__":
    sys.exit(main())
