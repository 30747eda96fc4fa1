"""Builds the labelled set of the PII tests: constructed values between sentences of open texts.

Usage: python tools/build_pii_labels.py sentences SOURCE_FOLDER    choose sentences.jsonl anew
       python tools/build_pii_labels.py labels [OUTPUT]            from them, labelled.jsonl

No value was found anywhere: mailboxes end in reserved names (RFC 2606), account and card numbers
are random digits behind right check digits, phone numbers come from the ranges that regulators
keep for films where there are any (Ofcom, Bundesnetzagentur, Arcep, PTS, NANPA 555-01xx), and are
made-up placeholders elsewhere. Same sentences, same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import zstandard

from stamm.corpus.pii.patterns import IBAN_LENGTHS

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "unit" / "corpus" / "pii"
SENTENCES, LABELS = FOLDER / "sentences.jsonl", FOLDER / "labelled.jsonl"
ROUNDS = 7  # times that each layout is drawn

# Folder of the source, its file, the licence, and how many sentences a language gives.
SOURCES = (
    ("peps", "peps", "CC0-1.0 or public domain", 16),
    ("18f-blog", "posts", "CC0-1.0", 16),
    ("eltec-novels", "eltec_chapters", "public domain", 12),
    ("fedlex-ch", "laws", "public domain", 14),
    ("laws-zh", "laws", "public domain", 12),
    ("udhr", "udhr", "public domain", 12),
)
LANGUAGES = ("eng", "deu", "fra", "ita", "spa", "por", "nld", "swe", "pol", "rus", "jpn", "cmn")
_BETWEEN = re.compile(r"(?<=[.!?])\s+|(?<=。)|\n+")
_PLAIN = re.compile(r"[^\W\d_][^\d@<>\[\]{}|*#_`\\\n:]{14,90}[.!?。]")


def sentences(folder: Path) -> Iterator[dict[str, str]]:
    """Sentences without digits, in the order of the hash of their words, source by source."""
    for name, file, licence, most in SOURCES:
        found: dict[str, dict[str, str]] = {}
        with zstandard.open(folder / name / f"{file}.jsonl.zst", "rb") as stream:
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                row = json.loads(line)
                language = row["language"][:3]
                if language not in LANGUAGES:
                    continue
                for text in [t for t in _BETWEEN.split(row["text"]) if _PLAIN.fullmatch(t)][:40]:
                    found[text] = {"text": text, "language": row["language"], "source": name}
        by_hash = sorted(found.values(), key=lambda s: hashlib.sha256(s["text"].encode()).digest())
        for language in LANGUAGES:
            chosen = [s for s in by_hash if s["language"][:3] == language]
            yield from ({**s, "licence": licence} for s in chosen[:most])


# A layout: "°" is a random digit, "¹" one from 1 to 9; everything else stands as written.
PHONES: dict[str, str] = {
    "eng": (
        "(202) 555-01°°|202-555-01°°|+1 202 555 01°°|+1-312-555-01°°|+1 (415) 555-01°°|"
        "1-800-555-01°°|020 7946 0°°°|+44 20 7946 0°°°|+44 (0)20 7946 0°°°|0113 496 0°°°|"
        "00 44 113 496 0°°°|+61 2 5550 1°°°|+353 1 234 567°|+41 21 234 56 7°|+12025550143|"
        "tel: 202.555.01°°|phone 2025550¹43|Fax: +44 1134960°°°"
    ),
    "deu": (
        "030 23125 °°°|+49 30 23125°°°|+49 (0)69 90009 °°°|Tel. 040/66969 °°°|Tel.: 0221 4710°°°|"
        "021 234 56 7°|+41 21 234 56 7°|0041 21 234 56 7°|Telefon 0212345678|+41 (0)78 123 45 6°|"
        "Mobil: 0171 39200°°|+43 1 2345678°|Fax (089) 99998-°°°|078 123 45 6°"
    ),
    "fra": (
        "01 99 00 °° °°|06 12 34 56 °°|+33 6 12 34 56 °°|02.61.91.°°.°°|+33 (0)2 61 91 °° °°|"
        "tél. 0261 91 °° °°|+41 21 234 56 7°|Tél. : 0353014°°°|+32 2 345 67 8°|00 33 4 65 71 °° °°"
    ),
    "ita": "06 1234 567°|+39 06 1234 567°|Tel. 0612345678|cellulare 312 345 678°",
    "spa": "+34 612 34 56 7°|teléfono 912 34 56 7°|+52 55 1234 567°",
    "por": "+351 21 234 567°|+55 11 91234-567°|telefone 212 345 67°",
    "nld": "020 123 456°|+31 20 123 456°|06-1234567°",
    "swe": "08-465 004 °°|+46 8 465 004 °°|tel. 08 465 004 °°",
    "pol": "+48 12 345 67 8°|tel. 12 345 67 8°",
    "rus": "+7 912 345-67-8°|8 (912) 345-67-8°|тел. 8 912 345 67 8°",
    "jpn": "03-1234-567°|+81 3-1234-567°|電話0312345678",
    "cmn": "+86 10 1234 567°|电话：010-1234567°|手机13123456789",
}
MAILBOXES = (
    "anna.meier|j_smith+list|info|élise.durand|почта|kontakt-2|x|a.b.c.d.e.f|SALES|"
    "first.middle.last|webmaster99|no-reply|müller|user%dept"
)
DOMAINS = (
    "example.org|mail.example.co.uk|post.example|bücher.example|xn--bcher-kva.example|"
    "sub.domain.of.example.net|EXAMPLE.COM|пример.example|firma-ag.example"
)
MAIL_FRAMES = ("{}", "<{}>", "mailto:{}", "({})", "„{}“", "E-mail: {},", "[{}](mailto)", "{};")
IBANS = "CH DE FR GB NL BE NO IT ES AT PL SE LI MT PT FI DK CZ HU GR IE LU RO BG TR SA AE BR"
IBAN_BREAKS = ("", " ", "\u00a0", "-", "\u202f", "\n", "\n    ")
CARDS = ("400000°°°°°°°°°", "510510°°°°°°°°°", "222300°°°°°°°°°", "3714490°°°°°°°",
         "601111°°°°°°°°°", "353011°°°°°°°°°", "3056930°°°°°°", "620000°°°°°°°°°")  # fmt: skip
CARD_WORDS = (
    "Visa ",
    "credit card no. ",
    "Kreditkarte ",
    "carte ",
    "tarjeta: ",
    "карта ",
    "信用卡",
)
ADDRESSES4 = (
    "{}|ping {}|http://{}:8080/x|{}/24|({})|host={}|Server {} antwortet|from {} port 22|"
    "l'adresse {}|IP: {}|{}:443|`{}`|[{}]|地址{}已"
)
ADDRESSES6 = (
    "2001:4860:4860::°°°°|2a00:1450:4001:0801:0000:0000:0000:1°°°|2A02:1205:¹¹°°::1|"
    "2001:67c:10ec::¹°°|2620:fe::¹°|2a00:1450:4001:801::200e|[2001:4860:4860::8°°°]:443|"
    "2a02:120b:c3ff:¹¹°°:1:2:192.168.1.¹°|::ffff:93.184.216.¹°|2001:4860:4860::8°°°%eth0|"
    "64:ff9b::93.184.216.¹°|http://[2a00:1450::¹°°]/|2a01::¹°/64"
)

# What looks like one of the kinds and is none.
NEGATIVES = {
    "swiss law": "SR 172.220.111.°|[SR **0.631.112.5°°**](https://x.example)|SR 0.831.109.454.2°°|"
    "AS 2013 1°°°|BBl 1998 III 12°°|RS 0.142.30|SR 741.621 und SR 0.741.621",
    "version": "version 120.0.60°°.109|Chrome/93.0.45°°.82|build 10.0.19041.1°°|v1.2.3.°|"
    "release 4.18.0.305|foo-93.184.216.3°.tar.gz|1.2.3.4.5|firmware 172.16.254.°°",
    "section": "3.2.1.4 Scope|§ 12.4.1.7|Section 8.8.4.4|1.1.1.° und 1.1.2.°",
    "book": "ISBN 978-3-16-14841°-0|ISBN 97831614841°0|ISSN 0378-59°°|doi:10.1000/182°.4711|"
    "arXiv:2405.1234°|10.1145/3292500.33309°°",
    "date": "2019-05-0¹|0¹.05.2019 12:30|1914-1918|12.10.1998 – 13.10.1999|2024:12:31|"
    "2024-01-01T10:0°:00+02:00|20240131 123°°°|vom 3.5.2019 bis 4.12.2021",
    "order": "order 1234 5678 9012 34°° °|Bestellnummer 2019-0044-7712|invoice 000123°°°|"
    "Art.-Nr. 0711.2000|No. 4711-0815-2233|ticket #20255501°°|EAN 76123456789°°",
    "address of a page": "https://shop.example/item/4929471048392°°°?id=2025550143|"
    "https://x.example/p/0041446681800|https://x.example/?t=+41446681800|"
    "http://x.example/a-202-555-0143.html|https://x.example/@someone|x.example/8.8.8.8.°/",
    "verse": "Gen 1:1-2:3|1. Mose 4,12-13|Ps 119:105.112|Mt 5:3-12; 6:9-13|Joh 3,16 f.",
    "code": "x = 0.33333333°°|e3b0c44298fc1c149afbf4c8996fb924|550e8400-e29b-41d4-a716-4466554400°°|"
    "00:1b:44:11:3a:b7|std::vector<int>|@pytest.mark.skip|left-pad@1.3.°|git@host.example:o/r.git|"
    "icon@2x.png|user@localhost|0x7fff5fbff8°°|rgb(255, 255, 255)|a[1:2, 3:4]|deque::front",
    "no public address": "192.0.2.°°|198.51.100.°|203.0.113.°|10.0.°°.1|192.168.1.1°°|127.0.0.1|"
    "fe80::1%eth0|2001:db8::¹°°|::1|fd00::¹°°|224.0.0.1|999.184.216.34|::ffff:10.0.0.°",
    "no account": "CH00 0762 0116 2385 2957 ¹|DE 2019 1234 56°°|IBAN: CH°°|AT 2019 / 12345|"
    "GB 2024 0131 1234 56°°|BE 1234 5678",
    "no card": "4111 1111 1111 1111|4242-4242-4242-4242|1234 5678 9012 34°°|9999 0000 1111 2222|"
    "4000 0000 0000 00°|60111111|5105-10-51-0510",
    "number": "1 079 500.00 368 470.00|912 345 678 Euro|47.3769, 8.5417°°|12 34 56 78 90 12 34|"
    "3.141592653589°°|1,234,567,890|1990 1991 1992 1993|+- 0.0012°°°°|6.022e23|CHE-123.456.7°°|"
    "10 000 000 000|100-200 300-400 500-600|+3 4 5 6 7|1/2/3/4/5/6/7/8",
}  # fmt: skip


class Draw:
    """Digits, choices and layouts from one seeded stream."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, limit: int) -> int:
        """A whole number in [0, limit). Random.random() is the same in every Python."""
        return int(self._random.random() * limit)

    def choice(self, items: Any) -> Any:
        """One of a sequence."""
        return items[self.below(len(items))]

    def fill(self, layout: str) -> str:
        """A layout with its digits drawn."""
        return re.sub(
            "[°¹]", lambda m: str(self.below(10) if m[0] == "°" else 1 + self.below(9)), layout
        )


def digits(draw: Draw, count: int) -> str:
    """Random digits."""
    return "".join(str(draw.below(10)) for _ in range(count))


def iban(draw: Draw, country: str) -> str:
    """An IBAN with right check digits over a random account."""
    account = digits(draw, IBAN_LENGTHS[country] - 4)
    if country in ("GB", "NL", "IE", "BG", "RO", "MT"):
        account = "NONE" + account[4:]
    number = int("".join(str(int(c, 36)) for c in f"{account}{country}00"))
    return f"{country}{98 - number % 97:02d}{account}"


def luhn(body: str) -> str:
    """`body` and its check digit."""
    total = sum(int(d) for d in body[-2::-2])
    total += sum(sum(divmod(2 * int(d), 10)) for d in body[-1::-2])
    return f"{body}{-total % 10}"


def grouped(symbols: str, separator: str) -> str:
    """Symbols in fours; fifteen digits as 4 6 5, fourteen as 4 6 4."""
    cuts = [4, 10] if len(symbols) in (14, 15) and symbols.isdigit() else range(4, 99, 4)
    parts, start = [], 0
    for cut in [*(c for c in cuts if c < len(symbols)), len(symbols)]:
        parts.append(symbols[start:cut])
        start = cut
    return separator.join(parts)


Value = tuple[str, str, str, str, str]  # kind, case, what stands before, value, what stands behind


def framed(frame: str, value: str) -> tuple[str, str, str]:
    """What a frame puts before a value, the value, and what it puts behind."""
    before, _, behind = frame.partition("{}")
    return before, value, behind


def positives(draw: Draw) -> Iterator[tuple[str, Value]]:
    """Language ("" for any) and value of every layout, one round of them."""
    for mailbox in MAILBOXES.split("|"):
        value = f"{mailbox}@{draw.choice(DOMAINS.split('|'))}"
        yield "", ("email", "plain", *framed(draw.choice(MAIL_FRAMES), value))
    for frame in ADDRESSES4.split("|"):
        value = f"{draw.choice((80, 93, 146, 185, 194, 212))}.{1 + draw.below(254)}." + (
            f"{draw.below(256)}.{1 + draw.below(254)}"
        )
        yield "", ("ip", "version 4", *framed(frame, value))
    for layout in ADDRESSES6.split("|"):
        written = draw.fill(layout)
        inner = re.search(r"\[([^\]]+)\]|^([^/\[]+)(?!.*\[)", written)
        assert inner is not None
        start, stop = inner.span(1) if inner[1] else inner.span(2)
        yield "", ("ip", "version 6", written[:start], written[start:stop], written[stop:])
    for _ in range(14):
        separator = draw.choice(IBAN_BREAKS)
        value = grouped(
            iban(draw, draw.choice(IBANS.split())), " " if "\n" in separator else separator
        )
        case = "grouped" if separator else "in one piece"
        if "\n" in separator:
            first, _, rest = value.partition(" ")
            value, case = f"{first}{separator}{rest}", "line break"
        yield "", ("iban", case, draw.choice(("", "IBAN: ", "IBAN ", "Konto ")), value, "")
    for pattern in CARDS:
        number = luhn(draw.fill(pattern))
        yield "", ("card", "grouped", "", grouped(number, draw.choice((" ", "-", "\u00a0"))), "")
        yield "", ("card", "in one piece", draw.choice(CARD_WORDS), number, "")
    yield "", ("card", "in one piece, no word", "", luhn(draw.fill(draw.choice(CARDS))), "")
    for language, layouts in (*PHONES.items(), *PHONES.items()):
        written = draw.fill(draw.choice(layouts.split("|")))
        found = re.search(r"[+(]*[0-9]", written)
        assert found is not None
        at = found.start()
        yield language, ("phone", "any", written[:at], written[at:], "")


def labels(lines: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The labelled rows: text, language, where each value stands, and which case it is."""
    draw = Draw(97)
    by_language: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        by_language.setdefault(line["language"][:3], []).append(line)
    languages = [language for language in LANGUAGES if language in by_language]

    def row(language: str, value: Value) -> dict[str, Any]:
        carrier = by_language[language or draw.choice(languages)]
        first, second = draw.choice(carrier), draw.choice(carrier)
        kind, case, before, written, behind = value
        head = f"{first['text']} {before}"
        return {
            "text": f"{head}{written}{behind} {second['text']}",
            "language": first["language"],
            "kind": kind,
            "case": case,
            "span": [len(head), len(head) + len(written)] if kind else None,
        }

    for _ in range(ROUNDS):
        for language, value in positives(draw):
            yield row(language, value)
        for case, layouts in NEGATIVES.items():
            for layout in layouts.split("|"):
                yield row("", ("", case, "", draw.fill(layout), ""))
        body = luhn(f"4{digits(draw, 14)}")
        yield row("", ("", "order", "", f"id {body}", ""))
        yield row("", ("", "no card", "", grouped(_spoiled(body), " "), ""))
        yield row("", ("", "no account", "", _spoiled(iban(draw, "CH")), ""))


def _spoiled(number: str) -> str:
    return f"{number[:-1]}{(int(number[-1]) + 1) % 10}"


def write(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(arguments: list[str]) -> None:
    """Either step, as the usage says."""
    steps: dict[str, Callable[[], None]] = {
        "sentences": lambda: write(SENTENCES, sentences(Path(arguments[1]))),
        "labels": lambda: write(
            Path(arguments[1]) if len(arguments) > 1 else LABELS, labels(read(SENTENCES))
        ),
    }
    if not arguments or arguments[0] not in steps:
        sys.exit(__doc__)
    steps[arguments[0]]()


if __name__ == "__main__":
    main(sys.argv[1:])
