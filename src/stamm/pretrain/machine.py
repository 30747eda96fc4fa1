"""Whether training here gives the bits of an earlier run: devices, vector instructions, libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.files import read_json
from stamm.base.schema import read_record_if_present
from stamm.engine.distributed import select_device
from stamm.engine.peak_flops import device_name
from stamm.engine.portable_bits import arithmetic
from stamm.pretrain.config import DecoderTrainingConfig
from stamm.pretrain.records import TimingFile
from stamm.runs.manifest import MANIFEST_FIX, environment
from stamm.runs.torchrun_env import rank_and_size

_LIBRARIES = ("torch", "numpy")


def machine_differences(arm: Path, config: DecoderTrainingConfig) -> tuple[str, ...]:
    """Differences of this machine and that of the run in `arm` that may change bits; () for none.

    Torch and its libraries choose kernels by the processor and its vector instructions. With
    `engine.portable_bits` they do not: then results of probes are compared in place of processors.

    Raises   RunError as `engine.portable_bits.check_portable`
    """
    timing = read_record_if_present(TimingFile, arm / "log" / "timing.json")
    manifest = read_json(arm / "manifest.json", MANIFEST_FIX)
    devices = Counter({device_name(select_device(config.engine.device)): rank_and_size()[1]})
    here = _facts(environment(), devices)
    there = _facts(manifest, timing.devices if timing else None)
    if config.engine.portable_bits:
        here["arithmetic"] = arithmetic(config.model)
        there["arithmetic"] = str(manifest.get("arithmetic"))
        for name in ("devices", "processor", "vector instructions"):
            del here[name]
    return tuple(
        f"{name} {there[name]} there, {here[name]} here"
        for name in here
        if there[name] != here[name]
    )


def _facts(plain: Mapping[str, Any], devices: Mapping[str, int] | None) -> dict[str, str]:
    """Properties of a machine that decide bits. `devices` None: not recorded, one processor is assumed."""
    named = devices or {str(plain.get("cpu")): 1}
    return {
        "devices": ", ".join(f"{count} x {name}" for name, count in sorted(named.items())),
        "processor": str(plain.get("cpu")),
        "vector instructions": str(plain.get("capability")),
        "stamm": str(plain.get("version")),
        **{name: str(plain.get("libraries", {}).get(name)) for name in _LIBRARIES},
    }
