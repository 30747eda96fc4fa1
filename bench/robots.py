"""Decisions about addresses in a second: robots.txt parsed, asked for the 15 Apertus agents.

Every file of a snapshot is asked about 50 addresses made from its own rules, so that most of them
come near one. Hosts come one after another, and once more in a drawn order, as in a crawl that was
shuffled; the time of parsing is counted in both. Before that each file is asked for one of these
addresses alone, the case of a crawl whose pages lie far apart: the fastest of five rounds. Then the
largest files alone, and files made to be slow. One thread; its processor time counts, so that other
work on the machine does not.

With --hosts, instead: a snapshot of that many hosts, with the same files in turn. Its index is made,
4,000 hosts and then 20,000 in a drawn order are asked, and the memory of the process is told.

Run      python -m bench.robots [SNAPSHOT.jsonl(.zst)] [--addresses 50] [--hosts N] [--out FILE.jsonl]
         Without a snapshot the shipped one of July 2019 is asked. Rows that hold nothing but
         domain and text are taken as files that were found.
Prints   a table, decisions a second unless it says otherwise; with --out appends one JSON line per row with the machine and the commit
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import ConsentResolver, RobotsSource
from stamm.corpus.consent.policies import robots_source
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.robots_parser import PARSED_BYTES
from stamm.corpus.consent.snapshot import (
    SnapshotEntry,
    index_in_memory,
    latest_entry,
    open_snapshot,
    parse_entry,
)
from stamm.corpus.inputs import locate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.streams import BoundedStream, bounded_lines
from stamm.runs.manifest import environment

RULE = re.compile(r"(?im)^\s*(?:dis)?allow\s*:\s*(/[\x21-\x22\x24-\x7e]*)")
LARGEST = 5


def addresses(answer: SnapshotEntry | RobotsAnswer, count: int, rng: random.Random) -> list[str]:
    """Addresses of a host near its rules, each rule's wildcards filled."""
    site = answer.url.removesuffix("/robots.txt")
    rules = RULE.findall(answer.text) or ["/"]
    filled = (rng.choice(rules).rstrip("$").replace("*", "x") for _ in range(count))
    return [f"{site}{path}/{rng.randrange(10**6)}.html" for path in filled]


def hostile() -> Iterable[RobotsAnswer]:
    """Files that make a careless matcher slow, each as large as is read."""
    bodies = {
        "stars": "Disallow: /" + "*a" * 8000 + "b\n",
        "nested": "".join(f"Disallow: /{'a' * n}\n" for n in range(1000)),
        "many-starred": "".join(f"Disallow: /*{n}*a*b\n" for n in range(25_000)),
        "near-misses": "".join(f"Disallow: /*{'a' * 40}b{n:04}{'a' * 40}\n" for n in range(5000)),
        "names": "".join(f"User-agent: n{n}\n" for n in range(15_000)) + "Disallow: /\n" * 15_000,
    }
    for name, body in bodies.items():
        text = "User-agent: *\n" + (body * (1 + PARSED_BYTES // len(body)))[:PARSED_BYTES]
        yield RobotsAnswer(url=f"https://{name}.example/robots.txt", status=200, read="", text=text)


def decisions_per_second(book: RobotsSource, urls: list[str]) -> float:
    """How many addresses a second a fresh Consent decides about."""
    consent = ConsentResolver(ConsentConfig(unknown_host="allow"), [book])
    start = time.process_time()
    for url in urls:
        consent.decide(url)
    return len(urls) / (time.process_time() - start)


def many_hosts(texts: list[str], hosts: int, each: int) -> list[tuple[str, float]]:
    """Decisions a second on a snapshot of many hosts, and MiB of memory, by case."""
    rng = random.Random(0)

    def drawn(order: Iterable[int], count: int) -> list[str]:
        return [
            f"https://h{host}.example/{rng.choice('ab')}/{rng.randrange(10**6)}.html"
            for host in order
            for _ in range(count)
        ]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.jsonl"
        with path.open("w") as out:
            for host in range(hosts):
                url = f"https://h{host}.example/robots.txt"
                text = f"# {host}\n{texts[host % len(texts)]}"
                row = {"url": url, "status": 200, "fetched": "2026-11-22", "text": text}
                out.write(json.dumps(row) + "\n")
        start = time.process_time()
        book = RobotsSource(latest_entry([open_snapshot(path, ReadLimits())], "robots"))
        rows = [("seconds to make the index", time.process_time() - start)]
        some = drawn(sorted(rng.sample(range(hosts), min(hosts, 4000))), each)
        rows.append((f"host by host of {hosts:,} hosts", decisions_per_second(book, some)))
        shuffled = drawn((rng.randrange(hosts) for _ in range(20_000)), 1)
        rows.append((f"drawn from {hosts:,} hosts", decisions_per_second(book, shuffled)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*rows, (f"MiB at most with {hosts:,} hosts", peak)]


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", nargs="?", default="package:robots.jsonl.zst")
    parser.add_argument("--addresses", type=int, default=50)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    answers = robots_files(locate(arguments.snapshot, "the first argument"))
    if arguments.hosts:
        texts = [answer.text for answer in answers]
        tell(many_hosts(texts, arguments.hosts, arguments.addresses), arguments.out)
    else:
        tell(decisions(answers, arguments.addresses), arguments.out)


def robots_files(path: Path) -> list[SnapshotEntry]:
    """The robots.txt answers of a snapshot, or of a list of files by domain."""
    limits = ReadLimits()
    with BoundedStream(path, limits.expansion) as stream:
        rows = [json.loads(line.data) for line in bounded_lines(stream, limits.line_bytes)]
    for row in rows:
        if "status" not in row:
            row |= {"url": f"https://{row['domain']}/robots.txt", "status": 200, "fetched": "2019"}
    found = [parse_entry(row) for row in rows]
    return [answer for answer in found if answer.kind == "robots"]


def single_decisions_per_second(answers: list[SnapshotEntry], urls: list[str]) -> float:
    """Decisions a second when every file is asked once: the fastest of five rounds.

    The garbage collector runs, but passes over what the benchmark itself holds and what the round
    before left.
    """
    best = 0.0
    for _ in range(5):
        book = book_of(answers)
        gc.collect()
        gc.freeze()
        best = max(best, decisions_per_second(book, urls))
        gc.unfreeze()
    return best


def decisions(answers: list[SnapshotEntry], each: int) -> list[tuple[str, float]]:
    """Decisions a second by case, for a snapshot and for files made to be slow."""
    rng = random.Random(0)
    asked = {answer.url: addresses(answer, each, rng) for answer in answers}
    grouped = [url for urls in asked.values() for url in urls]
    shuffled = rng.sample(grouped, len(grouped))
    first = [urls[0] for urls in asked.values()]
    rows = [
        ("one address of each file", single_decisions_per_second(answers, first)),
        ("host by host", decisions_per_second(book_of(answers), grouped)),
        ("shuffled", decisions_per_second(book_of(answers), shuffled)),
    ]
    for answer in sorted(answers, key=lambda a: -len(a.text))[:LARGEST]:
        urls = asked[answer.url]
        kib = len(answer.text) // 1024
        book = book_of([answer])
        rows.append((f"{answer.url} {kib} KiB, first", decisions_per_second(book, urls)))
        rows.append((f"{answer.url} {kib} KiB, parsed", decisions_per_second(book, urls * 20)))
    for made in hostile():
        site = made.url.removesuffix("/robots.txt")
        urls = [f"{site}/{'a' * 2000}{n}" for n in range(5)]
        book = robots_source([made])
        book_parsed = (decisions_per_second(book, urls[:1]), decisions_per_second(book, urls))
        rows.append((f"hostile: {made.url}, first", book_parsed[0]))
        rows.append((f"hostile: {made.url}, parsed", book_parsed[1]))
    return rows


def book_of(answers: Iterable[SnapshotEntry]) -> RobotsSource:
    """A book of answers that is read into a temporary database."""
    return RobotsSource(latest_entry([index_in_memory(answers)], "robots"))


def tell(rows: list[tuple[str, float]], out: Path | None) -> None:
    """Print the rows; append them to a file when one is named."""
    for name, value in rows:
        print(f"{value:12,.0f}   {name}")
    if out is not None:
        machine = environment()
        with out.open("a") as opened:
            for name, value in rows:
                row = {"bench": "robots", "case": name, "value": round(value), **machine}
                opened.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
