"""Deduplication of near-duplicates: recall and precision on all pairs, rates, and memory.

recall   clusters of stamm against exact Jaccard similarity on all pairs of a sample of JSONL
         texts; and beside rensa's in-memory LSH, which removes what shares one band with a text
         before it, where it is installed (pip install rensa==0.5.0)
memory   peak of the global step on synthetic signatures, at --documents and ten times as many

Run      python -m bench.dedup recall FILE.jsonl.zst ... [--sample 3000]
         python -m bench.dedup memory [--documents 200000] [--memory-mib 300]
Prints   one JSON line a measurement. Rates are of processor time, one thread
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from stamm.corpus.dedup.cluster import find_clusters, keys_row, keys_schema
from stamm.corpus.dedup.config import DedupConfig
from stamm.corpus.dedup.shingles import hash_shingles, hash_words, minhash, text_key
from stamm.corpus.documents import InputRecord
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.tables import TableWriter, read_rows, write_rows

CONFIG = DedupConfig()
GROWTH = 10


def tell(**facts: Any) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)


def texts(files: list[str]) -> list[str]:
    """Every text of the files, in order."""
    records = itertools.chain.from_iterable(
        read_input(file, Path(file), ReadLimits()) for file in files
    )
    return [record.content.decode() for record in records if isinstance(record, InputRecord)]


def timed(what: str, given: list[str], work: Callable[[], Any]) -> Any:
    """What `work` gives; its rates are printed."""
    began = time.process_time()
    result = work()
    seconds = time.process_time() - began
    megabytes = sum(len(text.encode()) for text in given) / 1e6
    tell(
        step=what,
        seconds=round(seconds, 2),
        mb_per_s=round(megabytes / seconds, 1),
        documents_per_s=round(len(given) / seconds),
    )
    return result


def clusters(given: list[str], config: DedupConfig) -> tuple[dict[str, Any], dict[int, int]]:
    """Counts, and the one kept for each text that has duplicates, both by number."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (
            keys_row(
                shard=0,
                row=number,
                document_id=f"{number:09d}",
                date="",
                key=text_key(text),
                signature=minhash(hash_words(text), config),
            )
            for number, text in enumerate(given)
        )
        write_rows(folder / "keys", keys_schema(config), rows)
        found = find_clusters(config, [folder / "keys"], folder / "clusters", scratch=folder)
        kept = {row["row"]: int(row["kept_id"]) for row in read_rows(folder / "clusters")}
    return asdict(found), kept


def every_pair(given: list[str]) -> np.ndarray:
    """Exact Jaccard similarity of all pairs, shape (texts, texts)."""
    runs = []
    for text in given:
        hashes = hash_words(text).hashes
        runs.append(
            np.unique(hash_shingles(hashes, min(CONFIG.shingle_words, max(len(hashes), 1))))
        )
    holders: dict[int, list[int]] = defaultdict(list)
    for number, found in enumerate(runs):
        for run in found.tolist():
            holders[run].append(number)
    common = np.zeros((len(given), len(given)), np.int32)
    for numbers in holders.values():
        if len(numbers) > 1:
            common[np.ix_(numbers, numbers)] += 1
    sizes = np.array([len(found) for found in runs])
    union = np.maximum(sizes[:, None] + sizes[None, :] - common, 1)
    return np.asarray(common / union)


def rensa_removed(given: list[str]) -> int:
    """How many texts share a band with an earlier one in rensa's LSH."""
    import rensa

    index = rensa.RMinHashLSH(CONFIG.threshold, CONFIG.hashes, CONFIG.bands)
    removed = 0
    for number, text in enumerate(given):
        words = re.findall(r"\w+", text.casefold())
        hashed = rensa.RMinHash(CONFIG.hashes, 42)
        last = max(len(words) - CONFIG.shingle_words + 1, 1)
        hashed.update([" ".join(words[i : i + CONFIG.shingle_words]) for i in range(last)])
        removed += bool(index.query(hashed))
        index.insert(number, hashed)
    return removed


def recall(files: list[str], sample: int) -> None:
    """Rates and counts on all texts; recall and precision on a sample of them."""
    given = texts(files)
    words = timed("words", given, lambda: [hash_words(text) for text in given])
    timed("signatures", given, lambda: [minhash(one, CONFIG) for one in words])
    for threshold in (0.5, 0.7, CONFIG.threshold, 0.8):
        tell(threshold=threshold, **clusters(given, replace(CONFIG, threshold=threshold))[0])
    if importlib.util.find_spec("rensa") is not None:
        tell(rensa_removed=timed("rensa", given, lambda: rensa_removed(given)))
    drawn = random.Random(0).sample(given, min(sample, len(given)))
    similar = np.triu(every_pair(drawn), 1)
    _, kept = clusters(drawn, CONFIG)
    root = np.array([kept.get(number, number) for number in range(len(drawn))])
    together = root[:, None] == root[None, :]
    for lowest in (CONFIG.threshold, 0.8, 0.9, 0.999):
        alike = similar >= lowest
        pairs = int(alike.sum())
        share = float(together[alike].mean()) if pairs else None
        tell(similarity=lowest, pairs=pairs, recall=share)
    joined = similar[np.triu(together, 1)]
    if not len(joined):
        tell(joined=0)
        return
    quantiles = np.quantile(joined, [0.01, 0.05, 0.5]).round(3).tolist()
    tell(
        joined=len(joined),
        precision=float((joined >= CONFIG.threshold).mean()),
        within_a_tenth=float((joined >= CONFIG.threshold - 0.1).mean()),
        similarity_quantiles=dict(zip(("1%", "5%", "50%"), quantiles, strict=True)),
    )


def synthetic(folder: Path, documents: int, per_shard: int) -> list[Path]:
    """Shards of signatures: of a hundred documents five are near copies of one before, one exact."""
    paths = []
    for shard, begin in enumerate(range(0, documents, per_shard)):
        draw = np.random.default_rng(shard)
        count = min(per_shard, documents - begin)
        table = draw.integers(0, 2**32 - 1, (count, CONFIG.hashes), np.uint32)
        copies = np.flatnonzero(draw.random(count) < 0.05)
        changed = draw.random((len(copies), CONFIG.hashes)) < 0.1
        table[copies] = np.where(changed, table[copies], table[np.maximum(copies - 1, 0)])
        paths.append(folder / f"{shard}.parquet")
        with TableWriter(paths[-1], keys_schema(CONFIG)) as writer:
            for row in range(count):
                same = begin + row - (row % 100 == 99)
                writer.add(
                    keys_row(
                        shard=shard,
                        row=row,
                        document_id=f"{same:032x}",
                        date="",
                        key=same.to_bytes(16, "big"),
                        signature=table[row],
                    )
                )
    return paths


def memory(documents: int, memory_mib: int) -> None:
    """Peak memory of the global step at two sizes, each in a process of its own."""
    for count in (documents, GROWTH * documents):
        with tempfile.TemporaryDirectory() as name:
            shards = synthetic(Path(name), count, per_shard=100_000)
            size = sum(shard.stat().st_size for shard in shards) / 2**20
            arguments = [sys.executable, "-m", "bench.dedup", "one", str(memory_mib)]
            arguments += map(str, shards)
            told = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
            tell(documents=count, keys_mib=round(size), **json.loads(told))


def one(memory_mib: int, shards: list[Path]) -> None:
    """The global step alone; counts, processor time and peak memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began, clock = time.process_time(), time.perf_counter()
        found = find_clusters(
            CONFIG, shards, folder / "clusters", scratch=folder, memory_mib=memory_mib
        )
        seconds, passed = time.process_time() - began, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tell(
        **asdict(found),
        limit_mib=memory_mib,
        peak_mib=round(peak),
        before_mib=round(before),
        seconds=round(seconds, 1),
        wall_s=round(passed, 1),
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("recall")
    verb.add_argument("files", nargs="+")
    verb.add_argument("--sample", type=int, default=3000)
    verb = verbs.add_parser("memory")
    verb.add_argument("--documents", type=int, default=200_000)
    verb.add_argument("--memory-mib", type=int, default=300)
    verb = verbs.add_parser("one")
    verb.add_argument("memory_mib", type=int)
    verb.add_argument("shards", nargs="+", type=Path)
    given = parser.parse_args()
    if given.verb == "recall":
        recall(given.files, given.sample)
    elif given.verb == "memory":
        memory(given.documents, given.memory_mib)
    else:
        one(given.memory_mib, given.shards)


if __name__ == "__main__":
    main()
