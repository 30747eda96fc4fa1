"""Train toys on a packed corpus, and replay them as a release from another processor.

`python portable_process.py FOLDER (portable|plain) (wide|narrow) [replay]`: FOLDER holds pack/ and gets the arms below
arms/; products have the widest vectors of the processor, or those of AVX2. Prints differences and problems as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stamm.base.files import read_json, sha256_file
from stamm.base.schema import write_record
from stamm.engine.config import EngineConfig
from stamm.models import fixed_order_products
from stamm.models.config import DecoderConfig, GatedFFN, PlainFFN
from stamm.optim.config import AdamW
from stamm.pretrain import job
from stamm.release.records import ReleaseFile
from stamm.release.replay import replay
from stamm.runs.job import Workspace
from stamm.runs.model_outputs import weights_sha256
from stamm.runs.records import ManifestFile
from tests.unit.trained_run import CONTEXT, config_of

_ELSEWHERE = {"cpu": "Another 9000", "capability": "AVX512"}


def main(folder: str, kind: str, products: str, *rest: str) -> None:
    """Train in FOLDER/run, as a release has it."""
    root = Path(folder)
    if products == "narrow":
        fixed_order_products._WIDE_FLAGS = {"none"}
    engine = EngineConfig(
        threads=2, compile="off", kernels="stamm", checkpoint_every=2, keep_every=2,
        portable_bits=kind == "portable",
    )  # fmt: skip
    blocks = {
        "fused": (engine, PlainFFN(width=41), AdamW()),
        "dense": (_dense(engine), GatedFFN(width=30, activation="swiglu"), None),
    }
    for name, (chosen, ffn, optimizer) in blocks.items():
        model = DecoderConfig(
            vocab_size=352, d_model=40, num_layers=2, num_heads=2, num_kv_heads=1, ffn=ffn,
            max_context=CONTEXT,
        )  # fmt: skip
        changes = {} if optimizer is None else {"optimizer": optimizer}
        config = config_of(root / "pack", engine=chosen, model=model, **changes)
        arm = root / "run" / "arms" / name
        arm.mkdir(parents=True)
        job.run(config, Workspace(folder=arm, inputs={"pack": root / "pack"}))
    if rest:
        print(json.dumps(_replayed(root)))


def _dense(engine: EngineConfig) -> EngineConfig:
    return EngineConfig(**{**vars(engine), "attention": "dense"})


def _replayed(root: Path) -> dict[str, list[str]]:
    arm = root / "run" / "arms" / "fused"
    manifest = read_json(arm / "manifest.json")
    manifest.pop("self_sha256")
    write_record(arm / "manifest.json", ManifestFile, manifest | _ELSEWHERE)
    record = {
        "version": "0", "name": "toy", "arm": "fused", "formats": [],
        "model_sha256": weights_sha256(arm / "model"), "tokenizer_sha256": "",
        "pack_sha256": sha256_file(root / "pack" / "manifest.json"),
    }  # fmt: skip
    write_record(root / "release.json", ReleaseFile, record)
    result = replay(root, root / "pack", 2, 1)
    problems = [segment.problem for segment in result.picked if segment.problem]
    manifest["arithmetic"] = "0" * 64
    write_record(arm / "manifest.json", ManifestFile, manifest)
    others = list(replay(root, root / "pack", 1, 1).differences)
    return {"same": list(result.differences), "problems": problems, "others": others}


if __name__ == "__main__":
    main(*sys.argv[1:])
