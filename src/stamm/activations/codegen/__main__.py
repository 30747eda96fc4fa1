"""`python -m stamm.activations.codegen [NAME ...]`: write generated/ again, whole or in part."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from stamm.activations.catalog import entries, get
from stamm.activations.codegen.write import GENERATED, generate, generate_shared
from stamm.runs.local_pool import WorkerPool, serve

_WORKER = "--worker"


def main(names: list[str]) -> int:
    """Write everything that ships, or what belongs to the named entries and what all share."""
    chosen = [get(name) for name in names] or list(entries())
    written = [str(path) for path in generate_shared(entries())]
    failed = []
    with WorkerPool(os.cpu_count() or 1, "stamm.activations.codegen", _WORKER) as pool:
        for ended in pool.run((spec.name, {"name": spec.name}) for spec in chosen):
            answer = ended.answer or {"error": f"its worker died, {ended.death()}"}
            written += answer.get("written", ())
            if "error" in answer:  # one entry must not hide the others
                failed.append(ended.name)
                sys.stderr.write(f"{ended.name}: {answer['error']}\n")
    if not names and not failed:
        _remove_strangers({Path(path).name for path in written})
    sys.stderr.write(f"{len(written)} files written, {len(failed)} entries failed\n")
    return 1 if failed else 0


def _write(task: dict[str, str]) -> dict[str, Any]:
    try:
        return {"written": [str(path) for path in generate(get(task["name"]))]}
    except Exception as error:
        return {"error": str(error)}


def _remove_strangers(written: set[str]) -> None:
    """Remove the files of entries that the catalogue no longer has."""
    for folder in ("kernels", "entries", "certificates"):
        for path in sorted(Path(GENERATED / folder).iterdir()):
            if path.is_file() and path.name not in written | {"__init__.py"}:
                path.unlink()


if __name__ == "__main__":
    is_worker = sys.argv[1:2] == [_WORKER]
    sys.exit(serve(sys.argv[2], _write) if is_worker else main(sys.argv[1:]))
