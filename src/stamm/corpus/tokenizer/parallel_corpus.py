"""A parallel text in many languages, to compare tokenizers between languages."""

from __future__ import annotations

from stamm.base.errors import DataError
from stamm.corpus.inputs import locate
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import UnreadableRecord

RIGHTS = "package:rights.jsonl.zst"
TITLE = "Universal Declaration of Human Rights"
ARTICLES = 30
# Numbered paragraphs of articles; the others have one or two without numbers.
_PARAGRAPHS = {
    11: 2,
    13: 2,
    14: 2,
    15: 2,
    16: 3,
    17: 2,
    20: 2,
    21: 3,
    23: 4,
    25: 2,
    26: 3,
    27: 2,
    29: 3,
}


def load_declaration() -> dict[str, tuple[str, ...]]:
    """The articles of the Universal Declaration in each language shipped with stamm, by language.

    Raises   DataError when the shipped file is damaged.
    """
    found = {}
    for record in read_input(RIGHTS, locate(RIGHTS, "tokenizer"), ReadLimits()):
        if isinstance(record, UnreadableRecord):
            raise DataError(f"{RIGHTS} is damaged: {record.detail}", fix="Install stamm again")
        found[record.language] = articles(record.content.decode())
    return dict(sorted(found.items()))


def articles(text: str) -> tuple[str, ...]:
    """The bodies of the 30 articles, without their headings.

    Blank lines separate blocks: the title and the preamble, in one or two, then the articles. A
    heading is a block or the first line of its body; numbered paragraphs are blocks.

    Raises   DataError for a text in another layout.
    """
    blocks = [block.strip() for block in text.split("\n\n")]
    found = [bodies for before in (1, 2) if (bodies := _bodies(blocks[before:])) is not None]
    if len(found) != 1:
        raise DataError(
            f"no declaration of {ARTICLES} articles in {len(blocks)} blocks",
            fix="Leave a blank line before each article and each of its numbered paragraphs",
        )
    return found[0]


def _bodies(blocks: list[str]) -> tuple[str, ...] | None:
    """The bodies when the blocks are 30 articles and nothing else, None otherwise."""
    bodies, at = [], 0
    for article in range(1, ARTICLES + 1):
        if at >= len(blocks):
            return None
        _, _, below = blocks[at].partition("\n")
        paragraphs = _PARAGRAPHS.get(article, 0 if below else 1)
        body = [below] if below else []
        body += blocks[at + 1 : at + 1 + paragraphs]
        if bool(below) == bool(paragraphs) or not all(body):
            return None
        bodies.append("\n".join(body))
        at += 1 + paragraphs
    return tuple(bodies) if at == len(blocks) else None
