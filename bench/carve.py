"""Experts carved from dense blocks, 4 of 8: balanced against random division, and training on, over three seeds.

This plan was committed before the first counted run; settings of the carve are the defaults of `stamm run
adapt.carve`, and no number of a model that is counted was seen before.

Models   SwiGLU, ReLU^2 and xIELU decoders of 1.28 million parameters, seeds 101 to 103, 768 steps of 1,024 tokens of
         novels in English and French, rates tuned alike by `compare.evidence_scale`: MODELS/<arm>_s<seed> with its
         model/, config.json and tokenizer/, and MODELS/pack. The method was tuned on another model and another text
Texts    experts are fitted on 16,384 tokens of the training split; all losses are of 16,384 tokens of the
         held-out split, nats per token, above the dense model: the cost

Part 1, without training; a cost with the old last matrix, and with the refit one, which `adapt.carve` stores
  balanced         the division of `adapt.carve`: the best of 12, chosen layer by layer by the error on the
                   calibration text
  random           mean of three random divisions, none of them chosen
  random, chosen   the best of 12 random divisions, chosen as the balanced one is
  oracle           balanced and random experts chosen by their true contributions, old matrix
  static           half of the units pruned for good
  Claim 1, for each activation: the cost of balanced is at most 0.5 of that of random, old last matrix. r is the
  mean over seeds of the ratio, with Student's t interval of 95 % (three seeds). It holds where the interval
  lies at or below 0.5, fails where it lies above, else it is not shown. Balance, and not only choice, is behind
  it where the same holds against "random, chosen"

Part 2, training on 1, 2 and 5 % of the steps of pretraining, from the next sequence on, with a quarter of the
peak rate, 5 % warm-up, linear decay to 0, a new optimizer state and frozen routers; all arms of a model on the
same tokens. Before this plan, on the demo's models, routers at the rate of the rest lost up to 0.14 nats
  dense, balanced (refit, as stored) at 1, 2 and 5 %; at 5 % also random, chosen (refit), and static: a dense
  model of half the width
  Claim 2, for each activation: at 5 % the loss of balanced is at most 0.01 above that of dense; rule as above

Part 3, the sparsity ruler, SwiGLU models alone: the share of units of the held-out text that can be skipped at 1 %
more perplexity of the training text (8,192 tokens of each), of the model and of the same with ReGLU, fitted as
by `adapt.activation`, no training
  Claim 3: the share with ReGLU is at least 1.15 times that of SwiGLU; rule as above, with 1.15 as a lower limit

What it cannot show: anything about models that use their width (these are trained on few tokens), other numbers
of experts, or speed. Intervals are over seeds of the model and its order of data, with one pair of texts.
Where time ends before the plan does, the tables state the count of seeds.

Run      python -m bench.carve --models MODELS --work FOLDER --out FILE.jsonl [--minutes N] [--arms ARM ...] [--untrained]
         python -m bench.carve --tables FILE.jsonl
Resumes  a line of the file is a finished measurement; one that is there is not repeated
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.capability import processor_facts
from stamm.adapt import carve_job
from stamm.adapt.blocks import BlockSample, block_samples
from stamm.adapt.carve import BlockCarve, carve_at_random, kept_units, refit_matrix
from stamm.adapt.change import Parent, open_parent
from stamm.adapt.config import CarveConfig, carved_config, swapped_config
from stamm.adapt.records import CarveFile
from stamm.adapt.refit import copy_weights, fit_layers
from stamm.adapt.sample import mean_loss
from stamm.base.schema import read_record
from stamm.engine.config import EngineConfig
from stamm.models.config import Experts
from stamm.models.decoder import Decoder
from stamm.models.serialization import load_decoder, save_decoder
from stamm.observe.ruler import find_thresholds, skipped_units
from stamm.optim.schedules import BatchStage, WarmupStableDecay
from stamm.pretrain import job
from stamm.pretrain.config import InitialWeights, PretrainConfig
from stamm.recipes.adapt import FROZEN_ROUTER
from stamm.recipes.branches import pretraining_of
from stamm.recipes.length import packed_length
from stamm.runs.job import Workspace
from stamm.statistics.intervals import interval

ARMS, SEEDS = ("swiglu", "relu2", "xielu"), (101, 102, 103)
EXPERTS = Experts(count=8, active=4)
CANDIDATES, SHARES = 12, (0.05, 0.02, 0.01)
CONFIG = CarveConfig(experts=EXPERTS, threads=1, tokens=16_384)


def planned() -> Iterator[tuple[str, int, str, float]]:
    """All measurements in order: activation, seed, arm ("carve": part 1, "ruler": part 3), share of the pretraining."""
    for seed in SEEDS:
        yield from ((arm, seed, "carve", 0.0) for arm in ARMS)
        yield "swiglu", seed, "ruler", 0.0
    for seed in SEEDS:
        for arm in ARMS:
            yield from ((arm, seed, way, 0.05) for way in ("dense", "balanced", "random", "static"))
    for share in SHARES[1:]:
        for seed in SEEDS:
            yield from ((arm, seed, way, share) for arm in ARMS for way in ("dense", "balanced"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of a model: of its run, of the packed corpus, and where changed models are written."""

    run: Path
    pack: Path
    work: Path

    def workspace(self, folder: Path) -> Workspace:
        """Inputs of `adapt.carve`, with its output in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self.run / "tokenizer"
        inputs = {"start": self.run / "model", "tokenizer": tokenizer, "pack": self.pack}
        return Workspace(folder=folder, inputs=inputs)

    def parent(self, config: CarveConfig = CONFIG) -> Parent:
        """The dense model with its texts."""
        return open_parent(config, self.workspace(self.work / "texts"))


def plain_engine(config: PretrainConfig) -> EngineConfig:
    """The engine of the run on one thread, not compiled, without checkpoints on the way."""
    return dataclasses.replace(
        config.engine, threads=1, compile="off", checkpoint_every=10**6, keep_every=None
    )


def carve(place: Place) -> dict[str, float]:
    """Part 1 of a model: the dense loss, and costs by arm; writes the models of part 2."""
    carve_job.run(CONFIG, place.workspace(place.work / "balanced"))
    record = read_record(CarveFile, place.work / "balanced" / carve_job.RECORD)
    costs = {"dense": record.loss}
    for arm in record.arms:
        name = f"{arm.carve} {arm.router or 'pruned'} {'refit' if arm.refit else 'old'}"
        costs[name] = arm.loss - record.loss
    parent = place.parent()
    decoder, texts, batch = parent.decoder, parent.texts, CONFIG.batch_tokens
    samples = list(block_samples(decoder, texts.fitted, batch))
    carves = [_chosen(sample, layer) for layer, sample in enumerate(samples)]
    new = Decoder(carved_config(decoder.config, EXPERTS)).eval()
    for refit in (False, True):
        changed = carve_job.carved_decoder(decoder, new, carves, refit=refit)
        loss = mean_loss(changed, texts.measured, batch)
        costs[f"random, chosen linear {'refit' if refit else 'old'}"] = loss - record.loss
    _store(new, place.work / "random")
    _store(_pruned(decoder, samples), place.work / "static")
    return costs


def _chosen(sample: BlockSample, layer: int) -> BlockCarve:
    """The best of as many random divisions as `adapt.carve` has candidates."""
    seeds = range(1000 * (layer + 1), 1000 * (layer + 1) + CANDIDATES)
    return min((carve_at_random(sample, EXPERTS, seed) for seed in seeds), key=lambda c: c.error)


@torch.no_grad()
def _pruned(decoder: Decoder, samples: list[BlockSample]) -> Decoder:
    """The dense decoder with the stronger half of each block's units, and the last matrix refit to them."""
    ffn, state = decoder.config.ffn, dict(decoder.state_dict())
    half = dataclasses.replace(decoder.config, ffn=dataclasses.replace(ffn, width=ffn.width // 2))
    for layer, sample in enumerate(samples):
        mask_C = kept_units(sample, 0.5)
        units = mask_C.nonzero().flatten()
        block = f"model.layers.{layer}.mlp"
        for name in ("gate_proj", "up_proj"):
            if (key := f"{block}.{name}.weight") in state:
                state[key] = state[key][units]
        state[f"{block}.down_proj.weight"] = refit_matrix(sample, mask_C)[:, units].contiguous()
    pruned = Decoder(half)
    pruned.load_state_dict(state)
    return pruned


def ruler(place: Place) -> dict[str, float]:
    """Part 3: shares of skipped units with SwiGLU and with ReGLU, and their losses above the dense ones."""
    parent = place.parent(dataclasses.replace(CONFIG, tokens=8192))
    old, texts = parent.decoder, parent.texts
    values: dict[str, float] = {}
    new = Decoder(swapped_config(old.config, "reglu")).eval()
    fits = fit_layers(old, new.config.ffn.spec, texts.fitted, CONFIG.batch_tokens)
    copy_weights(old, new, fits)
    for name, decoder in (("swiglu", old), ("reglu", new)):
        found = find_thresholds(decoder, texts.fitted)
        skipped = skipped_units(decoder, texts.measured, found)
        dense = mean_loss(decoder, texts.measured, CONFIG.batch_tokens)
        values |= {f"{name} share": skipped.share, f"{name} excess": skipped.loss - dense}
        values[f"{name} dense"] = dense
    return values


def _store(decoder: Decoder, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_decoder(decoder, folder / "model")


def train(place: Place, way: str, share: float) -> float:
    """Part 2: the loss of an arm after training on `share` of the steps of its pretraining."""
    source = pretraining_of(place.run, ())
    weights = place.run / "model" if way == "dense" else place.work / way / "model"
    config = further(source, place.pack, load_decoder(weights).config, str(weights), share)
    folder = place.work / f"{way}-{share}"
    shutil.rmtree(folder, ignore_errors=True)
    workspace = place.workspace(folder)
    inputs = {"pack": place.pack, "begin": weights, "tokenizer": workspace.inputs["tokenizer"]}
    job.run(config, Workspace(folder=folder, inputs=inputs))
    texts, trained = place.parent().texts, load_decoder(folder / "model")
    loss = mean_loss(trained, texts.measured, CONFIG.batch_tokens)
    shutil.rmtree(folder)
    return loss


def further(
    source: PretrainConfig, pack: Path, model: Any, weights: str, share: float
) -> PretrainConfig:
    """The training on, as `stamm run adapt.carve tokens=N` configures it."""
    total = source.total_sequences(packed_length(pack).sequences(source.context))
    batch = source.batch[-1].size
    sequences = batch * round(share * source.batches(total).num_steps)
    rules = (FROZEN_ROUTER,) if model.ffn.experts else ()
    return dataclasses.replace(
        source,
        model=model,
        optimizer=dataclasses.replace(source.optimizer, groups=rules),
        engine=plain_engine(source),
        evaluate=None,
        trackers=(),
        first_sequence=source.first_sequence + total,
        sequences=sequences,
        batch=(BatchStage(size=batch),),
        schedule=WarmupStableDecay(
            peak=source.schedule.peak / 4,
            warmup_sequences=round(0.05 * sequences),
            decay_share=0.95,
            law="linear",
        ),
        begin=InitialWeights(checkpoint=weights, moments="restart"),
    )


def measure(args: argparse.Namespace) -> None:
    """The measurements of the plan that the file does not have, of models that are there, until the time is over."""
    facts, started = processor_facts(), time.monotonic()
    for arm, seed, way, share in planned():
        key = f"{arm} {seed} {way} {share}"
        if (
            arm not in args.arms
            or (args.untrained and share)
            or key in {line["key"] for line in read(args.out)}
        ):
            continue
        if time.monotonic() - started > 60 * args.minutes:
            return
        name, begun = f"{arm}_s{seed}", time.process_time()
        place = Place(run=args.models / name, pack=args.models / "pack", work=args.work / name)
        if not (place.run / "tokenizer" / "tokenizer.json").is_file():
            print(f"{key}: {place.run} is not there yet", flush=True)
            continue
        parts = {"carve": carve, "ruler": ruler}
        values = parts[way](place) if way in parts else {"loss": train(place, way, share)}
        line = {"key": key, "arm": arm, "seed": seed, "way": way, "share": share, **values}
        line |= {"cpu_seconds": round(time.process_time() - begun, 1), **facts}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(key, values, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tables(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Both parts as Markdown, with the verdicts."""
    part_1 = [line for line in lines if line["way"] == "carve"]
    known = {name for line in part_1 for name in line}
    yield f"| cost without training | {' | '.join(ARMS)} |\n|---|{'---|' * len(ARMS)}"
    for name in sorted(n for n in known if n.endswith((" old", " refit"))):
        yield _row(name, [[line[name] for line in part_1 if line["arm"] == arm] for arm in ARMS])
    for name in ("random", "random, chosen"):
        for matrix in ("old", "refit"):
            ratios = [
                [line[f"balanced linear {matrix}"] / line[f"{name} linear {matrix}"] for line in part_1 if line["arm"] == arm]
                for arm in ARMS
            ]  # fmt: skip
            yield _row(f"ratio to {name}, {matrix}", ratios, 0.5 if matrix == "old" else None)
    losses = {(x["arm"], x["seed"], x["way"], x["share"]): x["loss"] for x in lines if "loss" in x}
    yield f"\n| loss above dense, trained alike | {' | '.join(ARMS)} |\n|---|{'---|' * len(ARMS)}"
    for way, share in [("balanced", s) for s in sorted(SHARES)] + [("random", 0.05), ("static", 0.05)]:  # fmt: skip
        values = [
            [
                losses[arm, seed, way, share] - losses[arm, seed, "dense", share]
                for seed in SEEDS
                if {(arm, seed, way, share), (arm, seed, "dense", share)} <= losses.keys()
            ]
            for arm in ARMS
        ]
        limit = 0.01 if (way, share) == ("balanced", 0.05) else None
        yield _row(f"{way}, {share:.0%}", values, limit)
    yield f"\n{_ruler_row(lines)}"


def _ruler_row(lines: list[dict[str, Any]]) -> str:
    found = [line["reglu share"] / line["swiglu share"] for line in lines if line["way"] == "ruler"]
    return _row("ReGLU share / SwiGLU share", [found]) if found else "no ruler"


def _row(name: str, values: list[list[float]], limit: float | None = None) -> str:
    cells = []
    for of_arm in values:
        if not of_arm:
            cells.append("not run")
            continue
        found = interval(of_arm, 0.95)
        cell = f"{found.mean:.4f}"
        if found.low is not None and found.high is not None:
            cell += f" [{found.low:.4f}, {found.high:.4f}]"
            if limit is not None and found.count == len(SEEDS):
                verdict = "holds" if found.high <= limit else "fails" if found.low > limit else "not shown"  # fmt: skip
                cell += f" **{verdict}**"
        cells.append(cell if found.count == len(SEEDS) else f"{cell} (n = {found.count})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, or print the tables of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    for name in ("models", "work", "out", "tables"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--arms", nargs="+", default=ARMS, help="activations of this process")
    parser.add_argument("--untrained", action="store_true", help="parts 1 and 3 alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="nothing begins later")
    args = parser.parse_args()
    if args.tables:
        print("\n".join(tables(read(args.tables))))
    else:
        measure(args)


if __name__ == "__main__":
    main()
