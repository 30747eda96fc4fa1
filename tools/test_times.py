"""Update tests/slow_tests.json from measured CPU seconds.

    pytest -n 2 --cpu-seconds build/times.jsonl       measure (an idle machine, kernels compiled)
    python -m tools.test_times build/times.jsonl      update the list

A measured test above the cap is listed with its seconds, one at or below it is taken out, and so
are tests that no longer exist. Tests that were not measured stay as they are. Where a file was
measured more than once, the last time counts.
"""

from __future__ import annotations

import argparse
import ast
import json
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLOW_TESTS = ROOT / "tests" / "slow_tests.json"
CAP = 2.0


@cache
def test_functions(file: Path) -> set[str]:
    """Names of the test functions of a file."""
    found = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


def exists(test: str) -> bool:
    """True if the function of a test id is in its file (parameters are not checked)."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and name.partition("[")[0] in test_functions(path)


def update(measured: dict[str, float]) -> tuple[int, int]:
    """Write the list again. Returns how many tests it holds and their CPU seconds."""
    listed = json.loads(SLOW_TESTS.read_text())
    slow = {test: s for test, s in listed["slow"].items() if test not in measured and exists(test)}
    slow |= {test: seconds for test, seconds in measured.items() if seconds > CAP}
    kept = {test: why for test, why in listed["kept_fast"].items() if exists(test)}
    content = {
        "cap": CAP,
        "kept_fast": dict(sorted(kept.items())),
        "slow": dict(sorted(slow.items())),
    }
    SLOW_TESTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return len(slow), round(sum(slow.values()))


def main() -> None:
    """Read the measurements and update the list."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measured", type=Path, nargs="+")
    measured: dict[str, float] = {}
    for file in parser.parse_args().measured:
        for line in file.read_text().splitlines():
            record = json.loads(line)
            measured[record["test"]] = record["seconds"]
    count, seconds = update(measured)
    fast = sum(s for s in measured.values() if s <= CAP)
    print(
        f"{count} tests of more than {CAP:g} CPU seconds, {seconds} s; others measured: {fast:.0f} s"
    )


if __name__ == "__main__":
    main()
