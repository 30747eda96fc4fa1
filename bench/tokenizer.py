"""Speed of encoding, equality of both ways on hostile strings, and what vocabularies cost languages.

own      trained here on the shipped texts, with 6,144 ids
tekken   Mistral-Nemo's, when mistral-common is installed
--file   a tokenizer.json of stamm's

Run      python -m bench.tokenizer [--strings N] [--quick] [--file NAME=PATH ...]
Prints   MB/s of both ways on the shipped texts; seconds for a million letters; how many of N
         hostile strings got different ids (must be 0); the parallel text's table, side by side
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import random
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

from stamm.corpus.documents import InputRecord
from stamm.corpus.inputs import locate, shipped_files
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.tokenizer.config import TekkenConfig, TokenizerConfig
from stamm.corpus.tokenizer.fairness import compare
from stamm.corpus.tokenizer.job import load_declaration
from stamm.corpus.tokenizer.tekken import tekken_description, train_tokenizer_on
from stamm.tokenizer.special_tokens import RESERVED_TOKENS
from stamm.tokenizer.tokenizer import Tokenizer

RUNS = {"a": "a", "A": "A", "blank": " ", "line feed": "\n", "-": "-", "aB": "aB", "漢": "漢"}
_COMMON = (*RESERVED_TOKENS, " ", "  ", "\n", "\r\n", "\t", "\xa0", "\u2028", "'", "’", "...", "é")
_TIMES = (*(1,) * 30, 2, 7, 120)
_RANGES = (
    (0x20, 0x7F),
    (0x20, 0x250),
    (0x300, 0x600),
    (0x900, 0xE00),
    (0x3040, 0xA000),
    (0, 0x110000),
)


def shipped() -> list[str]:
    """Every text shipped with stamm as JSON lines."""
    names = [f"package:{name}" for name in shipped_files() if name.endswith(".jsonl.zst")]
    records = (r for name in names for r in read_input(name, locate(name, ""), ReadLimits()))
    return [record.content.decode() for record in records if isinstance(record, InputRecord)]


def hostile(draw: random.Random) -> str:
    """A string of blanks, reserved tokens, words cut anywhere, and letters of all scripts.

    One in twenty also holds characters that nobody has assigned: those go the slow way.
    """
    known, parts = draw.random() < 0.95, []
    for _ in range(draw.randint(1, 30)):
        low, high = draw.choice(_RANGES)
        letters = [chr(draw.randrange(low, high)) for _ in range(draw.randint(1, 6))]
        kinds = [unicodedata.category(c) for c in letters]
        word = "".join(
            c
            for c, kind in zip(letters, kinds, strict=True)
            if kind != "Cs" and not (known and kind == "Cn")
        )
        parts.append(draw.choice((word, draw.choice(_COMMON))) * draw.choice(_TIMES))
    return "".join(parts)


def differences(tokenizer: Tokenizer, number: int) -> tuple[int, int]:
    """Of `number` hostile strings: how many went the quick way, and how many got other ids."""
    draw = random.Random(28)
    quick = different = 0
    for _ in range(number):
        text = hostile(draw)
        quick += tokenizer.fast is not None and tokenizer.fast.can_encode(text)
        different += tokenizer.encode(text) != tokenizer.encode_slowly(text)
    return quick, different


def seconds(work: Callable[[], object]) -> float:
    """The shortest of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(name: str, tokenizer: Tokenizer, texts: list[str], strings: int, letters: int) -> None:
    """Print speed, long runs and equality of one vocabulary."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    same = sum(tokenizer.encode(text) == tokenizer.encode_slowly(text) for text in texts)
    quick = seconds(lambda: [tokenizer.encode(text) for text in texts])
    slow = seconds(lambda: [tokenizer.encode_slowly(text) for text in texts])
    print(f"\n{name}: {tokenizer.size} ids, {len(texts)} texts of {size:.1f} MB, {same} alike")
    print(f"  quick {size / quick:.1f} MB/s, slow {size / slow:.1f} MB/s, {slow / quick:.1f} times")
    for run, letter in RUNS.items():
        text = letter * (letters // len(letter))
        own, library = (
            seconds(functools.partial(encode, text))
            for encode in (tokenizer.encode, tokenizer.encode_slowly)
        )
        print(f"  {letters:,} of {run}: {own:.2f} s, slow {library:.2f} s")
    went, different = differences(tokenizer, strings)
    print(f"  {strings} hostile strings: {went} the quick way, {different} with other ids")


def table(tokenizers: dict[str, Tokenizer]) -> None:
    """Print what the parallel text costs each language."""
    told = compare(tokenizers, load_declaration())
    print("\n| | " + " | ".join(told) + " |\n|---|" + "---|" * len(told))
    for row in ("gini", "bytes_per_token", "vocabulary_used"):
        print(f"| {row} | " + " | ".join(f"{each[row]:.3f}" for each in told.values()) + " |")
    for language in next(iter(told.values()))["languages"]:
        cells = (each["languages"][language] for each in told.values())
        shown = (
            f"{c['tokens_per_line']:.1f}, {c['tokens_per_word'] or 0:.2f}, {c['bytes_per_token']:.2f}"
            for c in cells
        )
        print(f"| {language} | " + " | ".join(shown) + " |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed, equality and fairness of vocabularies")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--file", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--quick", action="store_true", help="small: its numbers mean nothing")
    arguments = parser.parse_args()
    texts, letters = shipped(), 10**6
    if arguments.quick:
        texts, letters, arguments.strings = texts[:20], 10**4, 200
    found = {"own": Tokenizer(train_tokenizer_on(TokenizerConfig(), texts))}
    if importlib.util.find_spec("mistral_common") is not None:
        found["tekken"] = Tokenizer(tekken_description(TekkenConfig()))
    for given in arguments.file:
        name, _, path = given.partition("=")
        found[name] = Tokenizer.load(Path(path))
    for name, tokenizer in found.items():
        measure(name, tokenizer, texts, arguments.strings, letters)
    table(found)


if __name__ == "__main__":
    main()
