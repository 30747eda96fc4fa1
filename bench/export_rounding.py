"""Held-out bits per byte of a trained model in llama.cpp by type: F32, BF16, Q8_0.

The model is exported to each type from its run, with 65,536 held-out tokens; the earlier exports of the
run are not touched. Wanted: Q8_0 within 0.5 % of the model, on a trained model of 16 million parameters
or more. Arms of 21 million parameters on the shipped text, hours on two cores:

    stamm run demo --out runs/rounding pretrain.model.d_model=512 pretrain.model.num_heads=8 \\
        pretrain.model.num_layers=8 arms.0.ffn.width=1024 arms.1.ffn.width=1536 arms.2.ffn.width=1536

Run      python -m bench.export_rounding runs/rounding/arms/xielu [--types F32 BF16 Q8_0]
Prints   a line per type; exits with 1 when Q8_0 misses the goal
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from stamm.base.schema import read_record
from stamm.export import job
from stamm.export.config import ExportConfig
from stamm.export.records import ParityFile
from stamm.models.parameter_shapes import parameter_shapes
from stamm.models.serialization import checked_config
from stamm.recipes.trained_models import export_inputs
from stamm.runs.job import Workspace

GOAL, SMALLEST = 0.005, 16_000_000


def change(arm: Path, kind: str) -> tuple[float, float]:
    """Bits per byte of the exported model, and its increase as a share."""
    with tempfile.TemporaryDirectory() as scratch:
        config = ExportConfig(
            target="gguf", quantization=kind, held_out_tokens=65_536, bits_tolerance=0.5, samples=0
        )
        job.run(config, Workspace(folder=Path(scratch), inputs=export_inputs(arm)))
        (folder,) = Path(scratch).iterdir()
        whole = read_record(ParityFile, folder / job.PARITY).bits[0]
    return whole.exported, whole.exported / whole.original - 1


def main() -> int:
    """Measure each type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", type=Path)
    parser.add_argument("--types", nargs="+", default=["F32", "BF16", "Q8_0"])
    options = parser.parse_args()
    shapes = parameter_shapes(checked_config(options.arm / "model"))
    count = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values())
    small = f", fewer than the {SMALLEST:,} of the goal" if count < SMALLEST else ""
    print(f"{options.arm}: {count:,} parameters{small}")
    missed = False
    for kind in options.types:
        bits, more = change(options.arm, kind)
        missed |= kind == "Q8_0" and more > GOAL
        print(f"{kind:5} {bits:.5f} bits per byte, {more:+.4%}", flush=True)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
