"""Start-up time of the command line and of the public interface.

Run      python -m bench.start [--rounds 9]
Prints   shortest wall-clock seconds of a process, and the aim: `stamm --help` below 0.5 s, `import stamm` 0.2 s
Exits    with 1 when one of them takes longer
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

# Name: the arguments of Python, and the aim in seconds.
CASES: dict[str, tuple[list[str], float]] = {
    "python": (["-c", ""], 0.2),
    "import stamm": (["-c", "import stamm"], 0.2),
    "stamm --help": (["-m", "stamm", "--help"], 0.5),
    "stamm ls recipes": (["-m", "stamm", "ls", "recipes"], 1.5),
}


def main(words: Sequence[str] | None = None) -> int:
    """Time each case; the shortest of several counts, so that a busy machine matters less."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args(words).rounds
    late = 0
    for name, (arguments, aim) in CASES.items():
        seconds = min(_seconds(arguments) for _ in range(rounds))
        late += seconds > aim
        print(f"{name:<18} {seconds:.3f} s (aim {aim} s)")
    return 1 if late else 0


def _seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
