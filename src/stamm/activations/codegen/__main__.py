"""`python -m stamm.activations.codegen [NAME ...]`: write generated/ again, whole or in part."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from stamm.activations.catalog import entries, get
from stamm.activations.codegen.write import GENERATED, generate, generate_shared


def main(names: list[str]) -> int:
    """Write everything that ships, or what belongs to the named entries and what all share."""
    chosen = [get(name) for name in names] or list(entries())
    written = generate_shared(entries())
    failed = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for spec, result in [(spec, pool.submit(generate, spec)) for spec in chosen]:
            try:
                written += result.result()
            except Exception as error:  # one entry must not hide the others
                failed.append(spec.name)
                sys.stderr.write(f"{spec.name}: {error}\n")
    if not names and not failed:
        _remove_strangers({path.name for path in written})
    sys.stderr.write(f"{len(written)} files written, {len(failed)} entries failed\n")
    return 1 if failed else 0


def _remove_strangers(written: set[str]) -> None:
    """Remove the files of entries that the catalogue no longer has."""
    for folder in ("kernels", "entries", "certificates"):
        for path in sorted(Path(GENERATED / folder).iterdir()):
            if path.is_file() and path.name not in written | {"__init__.py"}:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
