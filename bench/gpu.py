"""Everything that can only be known on a GPU: the tests of tests/gpu, then the benchmarks.

Run      make gpu, or python -m bench.gpu [--only PART ...] [--device cpu] [--quick] [--out FILE]
Prints   a line per result and a summary; exits with 1 where a limit is not met
Writes   the table of docs/gpu.md, and bench/results/gpu-DEVICE.jsonl: one JSON line per result,
         with commit, device, driver, versions, shape, dtype, p20, p50 and p80 in seconds, ratio,
         limit, met. A part that is measured again replaces its lines. `--quick` writes below
         build/: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import gpu_page
from bench.gpu_work import ALL_PASS, BENCHMARKS, Limit, Result, Setting, quick
from stamm.activations.fused import build, gpu
from stamm.runs import manifest

ROOT = Path(__file__).parents[1]
TESTS, ALL = "tests", "all"
PARTS = (TESTS, *BENCHMARKS)
WORKERS = 12
SECONDS = 480  # for everything
TEST_SECONDS, ONE_TEST_SECONDS = 240, 100
IN_TIME = Limit(of="took", at_most=SECONDS)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and write; 0 where every limit is met, 1 where one is not, 2 where nothing can run."""
    options = _options(words)
    device = torch.device(options.device)
    why = _why_not(device)
    if why is not None:
        print(f"make gpu: {why}", file=sys.stderr)
        return 2
    # The tests compile what the benchmarks run, and a home of their own must not hide it.
    os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build" / "triton"))
    began = time.perf_counter()
    facts = _facts(device, options.commit)
    parts = options.only or PARTS
    out = options.out or _place(facts["device"], options.quick)
    lines = [line for line in _read(out) if line["part"] not in (*parts, ALL)]
    setting = quick(device) if options.quick else Setting(device=device)

    def tell(part: str, result: Result) -> None:
        line = {"part": part, **result.line(), **facts}
        if options.quick and part != TESTS:
            line["met"] = None  # no limit is meant for shapes this small
        lines.append(line)
        _write(out, lines)
        print(gpu_page.row(line), flush=True)

    for part in parts:
        for result in _results(part, setting, options):
            tell(part, result)
    took = time.perf_counter() - began
    if set(parts) >= set(PARTS):
        told, more = f"{took:.0f} s", {"took": took}
        tell(ALL, Result(benchmark=ALL, case="make gpu", limit=IN_TIME, told=told, more=more))
    if out.parent == gpu_page.RESULTS:
        gpu_page.main()
    return _summary([line for line in lines if line["part"] in (*parts, ALL)], took, out)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=PARTS, help="again for more parts")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run at all?")
    parser.add_argument("--tests", default="", metavar="WORDS", help="pytest's -k")
    parser.add_argument("--workers", type=int, default=min(WORKERS, os.cpu_count() or 1))
    parser.add_argument("--commit", help="of a copy without git")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl")
    return parser.parse_args(words)


def _why_not(device: torch.device) -> str | None:
    if device.type == "cpu":
        return build.unavailable_reason()
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} in {sys.executable} is built without CUDA or ROCm. Name a"
            " Python whose torch has one: make gpu GPU_PYTHON=python3"
        )
    return gpu.unavailable_reason()


def _facts(device: torch.device, commit: str | None) -> dict[str, Any]:
    """The machine, the versions and the commit, the same for every line."""
    found = manifest.environment()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        "device": name,
        "driver": _driver() if device.type == "cuda" else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        **found,
        "commit": found["commit"] or commit,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip() or None


def _place(device: str, small: bool) -> Path:
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    folder = ROOT / ("build" if small or device == "cpu" else "bench/results")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"gpu-{name}.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part.replace(path)


def _results(part: str, setting: Any, options: argparse.Namespace) -> Iterator[Result]:
    """The results of a part. One that fails is a result, too: the others are still measured."""
    try:
        yield from _tests(setting.device, options) if part == TESTS else BENCHMARKS[part](setting)
    except Exception as error:  # whatever it is, it is told, in the file and by the exit code
        told = f"{type(error).__name__}: {error}"[:500]
        more = {"failed": 1, "error": told}
        yield Result(benchmark=part, case="raises", limit=ALL_PASS, told=told, more=more)
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()


def _tests(device: torch.device, options: argparse.Namespace) -> Iterator[Result]:
    """The tests of tests/gpu by file: how many passed and failed, and why others did not run.

    build/gpu-tests.log has each as it ends, so that a run that is cut off tells how far it came.
    """
    report = ROOT / "build" / "gpu-tests.xml"
    log = report.with_suffix(".log")
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--on", device.type]
    command += ["-n", str(options.workers), "--dist", "worksteal"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-k", options.tests]
    command += ["-v", "-o", f"timeout={ONE_TEST_SECONDS}"]
    # One thread each: the judge works on the CPU, and there are many of them.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as output:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
            timeout=None if options.device == "cpu" else TEST_SECONDS,
        )
    if done.returncode > 1 or not report.is_file():
        raise RuntimeError(f"pytest ends with {done.returncode}: {log.read_text()[-400:]}")
    if done.returncode:
        print(log.read_text())
    found: dict[str, list[ElementTree.Element]] = {}  # by file
    for case in ElementTree.parse(report).iter("testcase"):
        found.setdefault(case.get("classname", "").rpartition(".")[2], []).append(case)
    for name, cases in sorted(found.items()):
        why = [skip.get("message", "") for case in cases for skip in case.iter("skipped")]
        wrong = [
            case.get("name")
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        passed = len(cases) - len(why) - len(wrong)
        more = {"passed": passed, "failed": len(wrong), "skipped": sorted(set(why))}
        yield Result(
            benchmark=TESTS,
            case=name.removeprefix("test_gpu_"),
            dtype="all",
            told=f"{passed} passed, {len(wrong)} failed, {len(why)} not run",
            limit=ALL_PASS,
            not_run="; ".join(sorted(set(why))) or None,
            more={**more, "which_failed": wrong},
        )


def _summary(now: list[dict[str, Any]], took: float, out: Path) -> int:
    wrong = [line for line in now if line["met"] is False]
    away = [line for line in now if line["not_run"]]
    held = sum(line["met"] is True for line in now)
    print(f"\n{len(now)} results in {took:.0f} s -> {out}")
    print(f"{held} keep their limit, {len(wrong)} do not, {len(away)} were not run")
    for line in (*wrong, *away):
        print(gpu_page.row(line))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
