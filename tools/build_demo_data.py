"""Builds the texts shipped with stamm (src/stamm/corpus/demo_data) from a folder of open corpora.

Usage: python tools/build_demo_data.py SOURCE_FOLDER [OUTPUT_FOLDER]

The choice is deterministic: within each source and language, documents are taken in the order of
the hash of their identifier until a byte budget is spent. Rebuilding from the same sources gives
the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zstandard
from fastwarc.warc import ArchiveIterator, WarcRecordType

OUTPUT = Path(__file__).resolve().parents[1] / "src" / "stamm" / "corpus" / "demo_data"
SHORTEST, LONGEST = 500, 12_000  # bytes of a document
Document = dict[str, Any]

# Languages of the Universal Declaration that the other sources lack, plus Switzerland's four.
_LANGUAGES = (
    "roh deu fra ita ces dan swe fin nob isl slk slv hrv srp est lav lit mlt gle cym eus cat glg "
    "epo afr zul xho som ibo wol kin hat tgl heb uzn tuk lat fur ltz"
)
DECLARATION_LANGUAGES = _LANGUAGES.split()
# Personal addresses that stand in the sources and need not travel with a package.
PERSONAL = re.compile(r"technosophos@|mbutcher@|@idyll\.org")
LAW_WITH_DOTTED_NUMBER = "172.220.111.3"


@dataclass(frozen=True)
class Source:
    """One set of the source folder: its file, what users must be told, and its licence."""

    file: str
    title: str
    origin: str
    licence: str
    attribution: str


SOURCES = {
    "guides": Source(
        "opensource-guide/articles.jsonl.zst",
        "Open Source Guides",
        "https://github.com/github/opensource.guide at ebc9678e39b55ff5e5c8801d1960904692188e90",
        "CC-BY-4.0",
        "GitHub, Inc. and contributors, https://opensource.guide/",
    ),
    "helm": Source(
        "helm-docs/docs.jsonl.zst",
        "Helm documentation and blog",
        "https://github.com/helm/helm-www at 227f41447a683545325e87aedf10c67096d11004",
        "MIT",
        "The Helm authors",
    ),
    "peps": Source(
        "peps/peps.jsonl.zst",
        "Python Enhancement Proposals (only those that declare it themselves)",
        "https://github.com/python/peps at ba4deeb7969588d937da609008d05bb83a47b1ab",
        "CC0-1.0 or public domain",
        "Their authors",
    ),
    "tldr": Source(
        "tldr-pages/pages.jsonl.zst",
        "tldr-pages",
        "https://github.com/tldr-pages/tldr at 08e345f42639f67d99282813247ac670dc6e87cb",
        "CC-BY-4.0",
        "The tldr-pages team and contributors",
    ),
    "declaration": Source(
        "udhr/udhr.jsonl.zst",
        "Universal Declaration of Human Rights",
        "https://unicode.org/udhr/ through nltk/nltk_data, udhr2.zip",
        "Public domain",
        "UDHR in Unicode project; translations published by OHCHR",
    ),
    "18f": Source(
        "18f-blog/posts.jsonl.zst",
        "18F website and blog",
        "https://github.com/18F/18f.gsa.gov at 0a55c75e6d9bc71c80136a3867dac52356177443",
        "CC0-1.0 (US Government work)",
        "18F, US General Services Administration",
    ),
    "swiss-law": Source(
        "fedlex-ch/laws.jsonl.zst",
        "Swiss federal law",
        "https://fedlex.data.admin.ch through legalize-dev/legalize-ch at "
        "8ab8bcf94b3249571f040dd57f37660ac7bcdc12",
        "Not protected (Swiss Copyright Act, Art. 5); preparation MIT",
        "Swiss Confederation",
    ),
    "speeches": Source(
        "us-speeches/speeches.jsonl.zst",
        "Speeches of US presidents",
        "nltk/nltk_data, inaugural.zip and state_union.zip",
        "Public domain (US Government work)",
        "The speakers",
    ),
    "novels": Source(
        "eltec-novels/eltec_chapters.jsonl.zst",
        "European Literary Text Collection, chapters",
        "https://github.com/COST-ELTeC (ELTeC-eng, ELTeC-deu, ELTeC-fra, level 1)",
        "Texts public domain; markup CC-BY-4.0",
        "ELTeC, COST Action CA16204",
    ),
    "probes": Source(
        "gutenberg-memorization-probes/books.jsonl.zst",
        "European Literary Text Collection, novels that are in no other set",
        "https://github.com/COST-ELTeC/ELTeC-eng, level 1, digitised by Project Gutenberg",
        "Texts public domain; markup CC-BY-4.0",
        "ELTeC, COST Action CA16204",
    ),
    "robots": Source(
        "robots-txt-real/robots.jsonl.zst",
        "robots.txt files of July 2019",
        "https://github.com/scrapy/protego, tests/test_data, at "
        "81f1b35d1a2b86595fb3ff656a58a68631ba06da",
        "BSD-3-Clause (collection); the files are public notices of their sites",
        "The Protego project",
    ),
    "pages": Source(
        "warc-open-constructed/open_pages.warc.gz",
        "Web archive of pages from 18F and the Open Source Guides",
        "Text and addresses as above",
        "CC0-1.0 and CC-BY-4.0",
        "18F; GitHub, Inc. and contributors",
    ),
}


MIT_NOTICE = """## Notice for the Helm documentation (MIT)

Copyright (c) The Helm Authors

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def read(folder: Path, source: str) -> Iterator[Document]:
    """The documents of a source, in file order."""
    with (folder / SOURCES[source].file).open("rb") as opened:
        stream = zstandard.ZstdDecompressor().stream_reader(opened)
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield json.loads(line)


def size(document: Document) -> int:
    """Bytes of a document's text."""
    return len(document["text"].encode())


def rank(document: Document) -> str:
    """Where a document stands in the draw."""
    return hashlib.sha256(document["id"].encode()).hexdigest()


def draw(
    documents: Iterable[Document],
    budget: int,
    longest: int = LONGEST,
    group: Callable[[Document], str] = lambda d: d["language"],
    fits: Callable[[Document], bool] = lambda d: True,
) -> list[Document]:
    """Documents in the order of their rank, up to `budget` bytes in each group."""
    taken: list[Document] = []
    spent: dict[str, int] = {}
    for document in sorted(documents, key=rank):
        bytes_ = size(document)
        if not SHORTEST <= bytes_ <= longest or not fits(document):
            continue
        if PERSONAL.search(document["text"]):
            continue
        key = group(document)
        if spent.get(key, 0) + bytes_ <= budget:
            spent[key] = spent.get(key, 0) + bytes_
            taken.append(document)
    return taken


def repeated(documents: Iterable[Document], limit: int) -> list[Document]:
    """Documents whose text occurs more than once in the source, at most `limit` of them."""
    families: dict[str, list[Document]] = {}
    for document in documents:
        families.setdefault(" ".join(document["text"].split()), []).append(document)
    twins = [f for f in families.values() if len(f) > 1 and size(f[0]) <= LONGEST]
    return [document for family in sorted(twins, key=lambda f: rank(f[0])) for document in family][
        :limit
    ]


def host(document: Document) -> str:
    """The host a document names."""
    return urlsplit(document["url"]).netloc


def choose(folder: Path) -> dict[str, list[Document]]:
    """The documents of each shipped file, in shipped order."""
    guides = list(read(folder, "guides"))
    helm = list(read(folder, "helm"))
    peps = list(read(folder, "peps"))
    posts = list(read(folder, "18f"))
    laws = list(read(folder, "swiss-law"))
    speeches = list(read(folder, "speeches"))
    novels = list(read(folder, "novels"))
    foreign = [d for d in guides if d["language"] != "eng_Latn"]
    declaration = [
        d
        for d in read(folder, "declaration")
        if d["language"].split("_")[0] in DECLARATION_LANGUAGES
    ]
    mails = [d for d in posts if "@gsa.gov" in d["text"]]
    addressed = [d for d in peps if "@python.org" in d["text"]]
    networked = [d for d in posts + peps if re.search(r"52\.85\.89\.|74\.125\.224\.", d["text"])]
    numbered = [d for d in laws if LAW_WITH_DOTTED_NUMBER in d["text"]]
    refused = [d for d in novels if host(d) == "www.gutenberg.org"]
    open_hosts = ("gallica.bnf.fr", "archive.org", "purl.dlib.indiana.edu", "www.bibebook.com")
    return {
        "guides": unique(
            repeated(guides, 12)
            + draw(foreign, 38_000, longest=16_000)
            + draw([d for d in foreign if size(d) > 16_000], 26_000, longest=26_000)
        ),
        "manuals": unique(
            repeated(helm, 15)
            + draw(helm, 54_000)
            + draw(read(folder, "tldr"), 2_400)
            + draw(addressed, 60_000)
            + draw(peps, 40_000)
        ),
        "rights": draw(declaration, 14_000, longest=14_000),
        "public": unique(
            draw(networked, 60_000, longest=30_000)
            + draw(mails, 100_000)
            + draw(posts, 60_000)
            + draw(numbered, 40_000, longest=30_000)
            + draw(laws, 120_000)
            + draw(speeches, 60_000)
        ),
        "novels": unique(
            draw(novels, 80_000, fits=lambda d: host(d) in open_hosts)
            + draw(refused, 30_000)
            + draw([d for d in novels if d["language"] == "deu_Latn"], 30_000)
        ),
    }


def unique(documents: Iterable[Document]) -> list[Document]:
    """The documents without those whose identifier came before."""
    seen: dict[str, Document] = {}
    for document in documents:
        seen.setdefault(document["id"], document)
    return list(seen.values())


def probe_books(folder: Path) -> list[Document]:
    """Twelve contiguous kilobytes from the middle of each English book."""
    books = []
    for book in sorted(read(folder, "probes"), key=rank):
        if book["language"] != "eng_Latn":
            continue
        middle = len(book["text"]) // 2
        start = book["text"].find("\n\n", middle) + 2
        excerpt = book["text"][start : start + 12_000]
        books.append({**book, "text": excerpt[: excerpt.rfind("\n\n")]})
    return books[:22]


def robots(folder: Path, documents: Iterable[Document]) -> list[Document]:
    """The robots.txt files of 2019 that belong to a host among the documents."""
    hosts = {host(d) for d in documents}
    return [
        {
            "domain": entry["domain"],
            "url": entry["url"],
            "status": 200,
            "fetched": entry["date"],
            "text": entry["text"],
        }
        for entry in sorted(read(folder, "robots"), key=lambda e: str(e["domain"]))
        if entry["domain"] in hosts or f"www.{entry['domain']}" in hosts
    ]


def shipped_line(document: Document) -> str:
    """One line of a shipped file: only what the corpus step reads."""
    kept = {
        "id": document["id"],
        "text": document["text"],
        "url": document["url"],
        "source": document["source"],
        "licence": document["license"],
        "language": document["language"],
        "date": document.get("date") or "",
    }
    for extra in ("title", "author"):
        if document.get(extra):
            kept[extra] = document[extra]
    return json.dumps(kept, ensure_ascii=False)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as zstd level 19."""
    body = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(body))


def write_pages(folder: Path, path: Path, taken_urls: set[str], limit: int) -> list[str]:
    """Copy whole records: the head, robots.txt, pages with an opt-out, others up to `limit` bytes.

    Records are copied as their compressed bytes; every record is its own gzip member.
    """
    archive = folder / SOURCES["pages"].file
    raw = archive.read_bytes()
    signals = {s["url"] for s in json.loads((archive.parent / "signals.json").read_text())}
    starts, urls = [], []
    for record in ArchiveIterator(
        io.BytesIO(raw), record_types=WarcRecordType.any_type, parse_http=False
    ):
        starts.append(record.stream_pos)
        urls.append(record.headers.get("WARC-Target-URI") or "")
    stops = [*starts[1:], len(raw)]
    sizes = {i: stops[i] - starts[i] for i in range(len(starts))}
    wanted = {0} | {i for i, url in enumerate(urls) if url.endswith("/robots.txt")}
    spent = sum(sizes[i] for i in wanted)
    by_rank = sorted(
        (i for i in sizes if i not in wanted and urls[i] not in taken_urls),
        key=lambda i: (urls[i] not in signals, hashlib.sha256(urls[i].encode()).hexdigest()),
    )
    for i in by_rank:
        if sizes[i] <= 9_000 and spent + sizes[i] <= limit:
            wanted.add(i)
            spent += sizes[i]
    path.write_bytes(b"".join(raw[starts[i] : stops[i]] for i in sorted(wanted)))
    return [urls[i] for i in sorted(wanted) if urls[i]]


def write_notes(output: Path, counts: dict[str, int]) -> None:
    """Write LICENSES.md and SOURCES.json."""
    sections = [
        f"## {s.title}\n\n- Source: {s.origin}\n- Licence: {s.licence}\n- Attribution: {s.attribution}\n"
        for s in SOURCES.values()
    ]
    (output / "LICENSES.md").write_text(
        "# Texts shipped with stamm\n\n"
        "A sample for demonstrations and tests, cut by `tools/build_demo_data.py`. Every document\n"
        "names its address, source and licence in its own record. Documents were chosen by size\n"
        "and by the hash of their identifier; texts are unchanged, except that probe_books.jsonl.zst\n"
        "holds excerpts.\n\n"
        "`pages.warc.gz` holds real page texts and real addresses in an **artificial** envelope: the\n"
        "HTML shell, the HTTP headers, the two robots.txt records and the opt-out signals were made\n"
        "so that the reader can be tried. It is not crawled data, and its robots.txt records say\n"
        "nothing about the real sites; they count only for the pages of that archive.\n\n"
        "`robots.jsonl.zst` holds robots.txt files as they were in July 2019. They are kept to show\n"
        "how consent is read and recorded, not as the present wish of those sites. The collection\n"
        "notes no HTTP status; the status 200 is ours.\n\n"
        + "\n".join(sections)
        + "\n"
        + MIT_NOTICE,
        encoding="utf-8",
    )
    files = sorted(p for p in output.iterdir() if p.suffix in {".zst", ".gz", ".txt"})
    listing = {
        "files": [
            {
                "file": p.name,
                "bytes": p.stat().st_size,
                "records": counts[p.name],
                "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
            }
            for p in files
        ],
        "sources": {
            name: {"title": s.title, "origin": s.origin, "licence": s.licence}
            for name, s in SOURCES.items()
        },
    }
    (output / "SOURCES.json").write_text(
        json.dumps(listing, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def main(folder: Path, output: Path) -> None:
    """Build every shipped file."""
    output.mkdir(parents=True, exist_ok=True)
    chosen = choose(folder)
    everything = [d for documents in chosen.values() for d in documents]
    counts = {}
    for name, documents in chosen.items():
        write_lines(output / f"{name}.jsonl.zst", map(shipped_line, documents))
        counts[f"{name}.jsonl.zst"] = len(documents)
    books = probe_books(folder)
    write_lines(output / "probe_books.jsonl.zst", map(shipped_line, books))
    counts["probe_books.jsonl.zst"] = len(books)
    taken_urls = {d["url"] for d in everything}
    urls = write_pages(folder, output / "pages.warc.gz", taken_urls, 200_000)
    counts["pages.warc.gz"] = len(urls) + 1
    entries = robots(folder, everything)
    write_lines(output / "robots.jsonl.zst", (json.dumps(e, ensure_ascii=False) for e in entries))
    counts["robots.jsonl.zst"] = len(entries)
    counts["deletions.txt"] = 3  # written by hand
    write_notes(output, counts)
    total: dict[str, int] = {}
    for document in everything:
        total[document["language"]] = total.get(document["language"], 0) + size(document)
    for language, bytes_ in sorted(total.items(), key=lambda item: -item[1]):
        print(f"{language}\t{bytes_}")
    print(f"{len(everything)} documents, {sum(total.values())} bytes, {len(total)} languages")
    print(f"probes {sum(map(size, books))} bytes; robots {[e['domain'] for e in entries]}")
    print(f"shipped {sum(p.stat().st_size for p in output.iterdir())} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else OUTPUT)
