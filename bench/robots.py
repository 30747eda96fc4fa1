"""Decisions about addresses in a second: robots.txt parsed, asked for the 15 Apertus agents.

Every file of a snapshot is asked about 50 addresses made from its own rules, so that most of them
come near one. Hosts come one after another, and once more in a drawn order, as in a crawl that was
shuffled; the time of parsing is counted in both. Then the largest files alone, and files made to be
slow. One thread; its processor time counts, so that other work on the machine does not.

Run      python bench/robots.py [SNAPSHOT.jsonl(.zst)] [--addresses 50] [--out FILE.jsonl]
         Without a snapshot the shipped one of July 2019 is asked.
Prints   a table; with --out appends one JSON line per row with the machine and the commit
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path

from stamm.corpus.config import ReadLimits
from stamm.corpus.consent.ask import Consent, RobotsBook
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.lines import PARSED_BYTES
from stamm.corpus.consent.robots import RobotsAnswer
from stamm.corpus.consent.snapshot import read_snapshot
from stamm.corpus.inputs import locate
from stamm.runs.manifest import environment

RULE = re.compile(r"(?im)^\s*(?:dis)?allow\s*:\s*(/[\x21-\x22\x24-\x7e]*)")
LARGEST = 5


def addresses(answer: RobotsAnswer, count: int, rng: random.Random) -> list[str]:
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


def decisions_per_second(book: RobotsBook, urls: list[str]) -> float:
    """How many addresses a second a fresh Consent decides about."""
    consent = Consent(ConsentConfig(unknown_host="allow"), [book])
    start = time.process_time()
    for url in urls:
        consent.ask(url)
    return len(urls) / (time.process_time() - start)


def main() -> None:
    """Measure, print and append."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", nargs="?", default="package:robots.jsonl.zst")
    parser.add_argument("--addresses", type=int, default=50)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(0)
    answers = read_snapshot(locate(arguments.snapshot, "the first argument"), ReadLimits())
    asked = {answer.url: addresses(answer, arguments.addresses, rng) for answer in answers}
    grouped = [url for urls in asked.values() for url in urls]
    shuffled = rng.sample(grouped, len(grouped))
    rows = [
        ("host by host", decisions_per_second(RobotsBook(answers), grouped)),
        ("shuffled", decisions_per_second(RobotsBook(answers), shuffled)),
    ]
    for answer in sorted(answers, key=lambda a: -len(a.text))[:LARGEST]:
        urls = asked[answer.url]
        kib = len(answer.text) // 1024
        book = RobotsBook([answer])
        rows.append((f"{answer.url} {kib} KiB, first", decisions_per_second(book, urls)))
        rows.append((f"{answer.url} {kib} KiB, parsed", decisions_per_second(book, urls * 20)))
    for answer in hostile():
        site = answer.url.removesuffix("/robots.txt")
        urls = [f"{site}/{'a' * 2000}{n}" for n in range(5)]
        book = RobotsBook([answer])
        book_parsed = (decisions_per_second(book, urls[:1]), decisions_per_second(book, urls))
        rows.append((f"hostile: {answer.url}, first", book_parsed[0]))
        rows.append((f"hostile: {answer.url}, parsed", book_parsed[1]))
    for name, rate in rows:
        print(f"{rate:12,.0f} a second   {name}")
    if arguments.out:
        machine = environment()
        with arguments.out.open("a") as out:
            for name, rate in rows:
                row = {
                    "bench": "robots",
                    "case": name,
                    "decisions_per_second": round(rate),
                    **machine,
                }
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
