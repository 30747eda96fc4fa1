"""Expected training time on this machine, for --dry-run and `stamm plan`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stamm.base.errors import ConfigError
from stamm.base.units import seconds_text
from stamm.engine.estimate import DEVICES, Devices
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.plan import Throughput, plan
from stamm.pretrain.throughput_model import cpu_throughput
from stamm.recipes.length import CorpusLength, corpus_length, packed_length
from stamm.recipes.study import MANIFEST, Study
from stamm.runs.torchrun_env import rank_and_size


def time_line(runs: Iterable[tuple[PretrainConfig, int | None, int]], jobs: int = 1) -> str:
    """The expected time of training runs, as one line; "" without runs.

    runs   configuration, sequences of its packed corpus (None: the configuration has the length), and
           the number of times it is trained
    jobs   runs at the same time: they gain nothing beyond the cores for their threads, and on one GPU
    """
    seconds, count, source, at_once = 0.0, 0, "", jobs
    for config, sequences, times in runs:
        devices, throughput = this_machine(config)
        time = plan(config, devices, sequences, throughput)["time"]
        if time is None:
            return "Training time: not known, torch is not installed."
        seconds += times * time["seconds"]
        count += times
        source = f"{time['devices']}, {time['source']}"
        cores = (os.cpu_count() or 1) // config.engine.threads
        at_once = min(at_once, 1 if devices is not None else max(cores, 1))
    if not count:
        return ""
    at_once = min(at_once, count)
    name = "run" if count == 1 else "runs"
    together = f", {at_once} at the same time" if at_once > 1 else ""
    expected = seconds_text(seconds / count * math.ceil(count / at_once))
    return f"Training time: about {expected} for {count} {name}{together} ({source})."


def this_machine(config: PretrainConfig) -> tuple[Devices | None, Throughput | None]:
    """The GPUs that a run would use here, or the CPU's throughput; measures a core for 0.1 s once."""
    if find_spec("torch") is None:
        return None, None
    import torch

    if config.engine.device != "cpu" and torch.cuda.is_available():
        name = torch.cuda.get_device_name().replace(" ", "")
        known = [key for key in DEVICES if key in name]
        if known:
            return Devices(rank_and_size()[1], max(known, key=len)), None
    threads = min(config.engine.threads, os.cpu_count() or 1)
    compiled = config.engine.compile == "layers"
    return None, cpu_throughput(_core_flops(), threads, compiled=compiled)


@cache
def _core_flops() -> float:
    import torch

    from stamm.engine.peak_flops import core_flops

    return core_flops(torch.float32)


def corpus_length_of(config: Study | PretrainConfig, run: Path) -> CorpusLength | None:
    """Length of the corpus; None when it is unknown and the run's length is given."""
    given = (config.pretrain if isinstance(config, Study) else config).sequences is not None
    if isinstance(config, Study):
        return None if given else corpus_length(config, run)
    foreign = config.foreign
    if not config.pack and foreign is None:
        if given:
            return None
        raise ConfigError(
            "the length of this run depends on its corpus, and none is set",
            fix="Set pack=FOLDER, sequences=N, or --sequences N",
        )
    if foreign is not None:
        from stamm.corpus.megatron_dataset import read_megatron

        tokens = sum(read_megatron(Path(prefix)).num_tokens for prefix in foreign.prefixes)
        names = ", ".join(foreign.prefixes)
        return CorpusLength(tokens=tokens, source=f"{tokens:,} tokens in {names}")
    pack = Path(config.pack)
    if given and not (pack / MANIFEST).is_file():
        return None  # not packed yet
    return packed_length(pack)
