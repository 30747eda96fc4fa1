"""Time of a trace and of a receipt, and changed weights that `stamm verify --deep` finds.

--tokens   a synthetic training order of so many tokens, in documents of about 1,000: `stamm.trace` of a step, of a
           document by id and by URL, and of tokens, without token files, as for a release
--passage  synthetic token files of so many tokens, Zipf over 32,768 ids: where they hold a passage of 100 and of 4,096
           tokens that they contain
--rows     a synthetic ledger of so many URLs: the tree, and receipts for URLs that are there and that are not
--tries    of the release given: so many weights changed in turn, one in each format, with records and sums changed to
           agree, and those that `--deep` names

Processor time of one thread.

Run      python -m bench.accountability [--tokens 1000000000] [--passage 100000000] [--rows 1000000] [--tries 200 --release FOLDER]
         [--out FILE.jsonl]
Prints   a table; with --out one JSON line per row with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stamm.base.config import to_plain
from stamm.base.files import write_json
from stamm.corpus.packed_dataset import PackedSplit
from stamm.corpus.shards import write_shard
from stamm.export.gguf_reader import GgufReader
from stamm.models.config import DecoderConfig
from stamm.optim.schedules import BatchStage
from stamm.pretrain import trace_order
from stamm.pretrain.config import PretrainConfig
from stamm.pretrain.trace import trace
from stamm.pretrain.trace_passage import find_places
from stamm.release.consent_receipt import receipt_text
from stamm.release.consent_tree import build_tree, prove
from stamm.release.derived import derived_problems
from stamm.release.file_difference import safetensors_tensors
from stamm.release.records import ConsentReceipt
from stamm.release.vrf import SecretKey
from stamm.runs.manifest import environment

ROUNDS = 5
RECEIPTS = 100


def seconds(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Median processor time of some rounds of `work`, in s; `before` is not counted."""
    times = []
    for _ in range(ROUNDS):
        before()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def write_order(root: Path, tokens: int) -> tuple[str, str]:
    """A synthetic run of one arm; an id and a URL of its order."""
    draw = np.random.default_rng(28)
    sizes = draw.integers(200, 1800, tokens // 1000 + 1)
    sizes[-1] += max(tokens - int(sizes.sum()), 0)
    count = len(sizes)
    ids = pa.array([f"{number:032x}" for number in range(count)])
    urls = pa.array([f"https://h{n % 1000}.example/pages/{n}" for n in range(count)])
    same = {name: pa.array([value]).dictionary_encode().take(pa.array(np.zeros(count, np.int64))).cast(pa.string())
            for name, value in (("source", "made"), ("licence", "CC0-1.0"), ("language", "eng_Latn"))}  # fmt: skip
    columns = {
        "tokens": pa.array(sizes), "document_id": ids, "url": urls, **same,
        "probe_id": pa.nulls(count, pa.string()), "occurrence": pa.array(np.zeros(count, np.int64)),
    }  # fmt: skip
    (root / "pack").mkdir(parents=True)
    pq.write_table(pa.table(columns), root / "pack" / "order-train.parquet", compression="zstd")
    total = int(sizes.sum())
    split = {"tokens": total, "documents": count, "stages": [{"documents": count, "tokens": total}]}
    write_json(root / "pack" / "manifest.json", {"schema": 2, "splits": {"train": split}})
    config = PretrainConfig(
        model=DecoderConfig(max_context=4096),
        context=min(4096, total // 64),
        batch=(BatchStage(size=16),),
    )
    arm = root / "arms" / "made"
    write_json(arm / "config.json", {"schema": 1, "kind": "pretrain", "config": to_plain(config)})
    write_json(arm / "manifest.json", {"schema": 1})
    steps = total // config.context // 16
    (arm / "metrics.jsonl").write_text(f'{{"step":{steps},"train/loss_nats":2.0}}\n')
    return f"{count // 2:032x}", f"https://h{count // 3 % 1000}.example/pages/{count // 3}"


def traces(tokens: int) -> Iterator[dict[str, Any]]:
    """Times of traces of a synthetic order."""
    with tempfile.TemporaryDirectory() as folder:
        document, url = write_order(Path(folder), tokens)
        asked = {"step": "step=3", "document": f"document={document}", "url": f"document={url}",
                 "tokens": f"tokens={tokens // 2}-{tokens // 2 + 99}"}  # fmt: skip
        for name, change in asked.items():
            took = seconds(partial(trace, folder, change), trace_order._parsed.cache_clear)
            yield {"what": f"trace by {name}", "tokens": tokens, "seconds": round(took, 3)}


def passages(tokens: int) -> Iterator[dict[str, Any]]:
    """Times to find a passage in synthetic token files."""
    draw = np.random.default_rng(28)
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder)
        weights = 1 / np.arange(1, 2**15 + 1)
        borders = np.cumsum(weights / weights.sum())

        def parts() -> Iterator[np.ndarray]:
            for start in range(0, tokens, 10**6):
                size = min(10**6, tokens - start)
                yield np.minimum(np.searchsorted(borders, draw.random(size)), 2**15 - 1)

        write_shard(pack / "train-00000", parts(), 8)
        shards = [{"name": "train-00000", "tokens": tokens, "sha256": {}}]
        splits = {"train": {"documents": 1, "tokens": tokens, "shards": shards}}
        write_json(pack / "manifest.json", {"schema": 2, "vocabulary": 2**15, "splits": splits})
        split = PackedSplit.open(pack, "train")
        for length in (100, 4096):
            passage = tuple(split.read(tokens // 3, tokens // 3 + length).tolist())
            find = partial(find_places, pack, passage, 8)
            took = seconds(find)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            if find().covered != length:
                raise SystemExit("the passage was not found")
            yield {
                "what": f"passage of {length}",
                "tokens": tokens,
                "seconds": round(took, 2),
                "peak_mib": peak,
            }


def receipts(rows: int) -> Iterator[dict[str, Any]]:
    """Time of a tree and of receipts."""

    def ledger() -> Iterator[dict[str, str]]:
        for number in range(rows):
            yield {"url": f"https://h{number % 1000}.example/pages/{number}", "document_id": f"{number:032x}",
                   "decision": "dropped", "reason": "robots_disallow", "consent": "refused",
                   "rule": "Disallow: /pages/", "agent": "*", "licence": "CC-BY-4.0"}  # fmt: skip

    with tempfile.TemporaryDirectory() as name:
        folder, key = Path(name), SecretKey(7)
        start = time.process_time()
        facts = build_tree(ledger(), key, folder)
        yield {"what": "tree", "rows": rows, "seconds": round(time.process_time() - start, 2)}
        draw, times, sizes = random.Random(3), [], []
        for number in range(RECEIPTS):
            n = draw.randrange(rows)
            url = f"https://h{n % 1000}.example/{'pages' if number % 2 else 'absent'}/{n}"
            start = time.process_time()
            proof = prove(folder, key, url)
            times.append(time.process_time() - start)
            made = ConsentReceipt(release="m", model_sha256="0" * 64, root=facts["root"],
                               public_key=facts["public_key"], **vars(proof))  # fmt: skip
            sizes.append(len(receipt_text(made).encode()))
            if (proof.rows is None) != (number % 2 == 0):
                raise SystemExit(f"{url}: a wrong answer")
        yield {"what": "receipt", "rows": rows, "seconds": round(statistics.median(times), 5),
               "largest_seconds": round(max(times), 5), "largest_bytes": max(sizes)}  # fmt: skip


def injections(release: Path, tries: int) -> Iterator[dict[str, Any]]:
    """Changed weights of a release, and those that are found; files are restored."""
    spans: dict[Path, list[tuple[int, int]]] = {}
    for path in (*release.glob("*"), *release.glob("export/*/*")):
        if path.suffix == ".safetensors":
            spans[path] = list(safetensors_tensors(path).values())
        elif path.suffix == ".gguf":
            spans[path] = [(t.start, t.start + t.size) for t in GgufReader(path).tensors.values()]
        elif path.suffix == ".onnx_data":
            spans[path] = [(0, path.stat().st_size)]
    draw, found, files = random.Random(11), 0, sorted(spans)
    start = time.process_time()
    for number in range(tries):
        path = files[number % len(files)]
        place = draw.randrange(*draw.choice(spans[path]))
        with path.open("r+b") as file:
            file.seek(place)
            (before,) = file.read(1)
            file.seek(place)
            file.write(bytes([before ^ 1 << draw.randrange(8)]))
        name = path.relative_to(release).as_posix()
        found += [p.file for p in derived_problems(release, lambda done: None)] == [name]
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([before]))
    took = time.process_time() - start
    yield {"what": "changed weights found", "tries": tries, "found": found, "formats": len(files),
           "seconds": round(took / max(tries, 1), 2)}  # fmt: skip


def main() -> None:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--passage", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--tries", type=int, default=0)
    parser.add_argument("--release", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.tokens:
        rows += traces(options.tokens)
    if options.passage:
        rows += passages(options.passage)
    if options.rows:
        rows += receipts(options.rows)
    if options.tries:
        rows += injections(options.release, options.tries)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.out is not None:
        with options.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row | environment()) + "\n" for row in rows)


if __name__ == "__main__":
    main()
