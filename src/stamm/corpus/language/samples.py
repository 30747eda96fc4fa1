"""Training samples for language identification: documents cut into short texts, some held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stamm.corpus.inputs import locate
from stamm.corpus.language.cld2 import KNOWN, cld2_guess
from stamm.corpus.language.codes import to_iso639_3
from stamm.corpus.language.config import LanguageTrainConfig
from stamm.corpus.language.scripts import text_script
from stamm.corpus.language.text_sample import plain_letters
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.corpus.records import UnreadableRecord

# Most letters used of one document; in a language with many documents its share of all letters, but
# not less than a page.
_LETTERS_OF_A_DOCUMENT = 12_000
_LETTERS_OF_A_PAGE = 1_500
_FEW_DOCUMENTS = 20
_OWN_SHARE = 0.8
_NO_SCRIPT = "Zyyy"
_NO_LANGUAGE = ("und", "mul", "mis", "zxx")


@dataclass
class LanguageTexts:
    """Lines of plain words in one language, for training and for evaluation."""

    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)


def collect_texts(config: LanguageTrainConfig) -> dict[str, LanguageTexts]:
    """The lines of every language of the inputs, by tag, in an order given by hashes.

    With 20 documents or more of a language whole documents are held out, else lines, so that every
    language can be evaluated. Results on lines of a document in training are too good.
    Edge     a line in another script than its tag is left out, and so is a line that CLD2 reliably
             identifies as English in a document of another language: untranslated passages. The
             script of a tag without one is detected (div_Zyyy becomes div_Thaa).
    """
    found: dict[str, dict[str, list[str]]] = {}
    for name in config.inputs:
        path = locate(name, "inputs")
        for record in read_input(name, path, ReadLimits()):
            if isinstance(record, UnreadableRecord):
                continue
            code = to_iso639_3(record.language[:3])
            if not code or code in _NO_LANGUAGE:
                continue
            lines = map(plain_letters, record.content.decode().splitlines())
            script = record.language[4:]
            if script in ("", _NO_SCRIPT):
                script, _ = text_script(record.content.decode()[:_LETTERS_OF_A_DOCUMENT])
            kept = list(_own_lines(lines, code, script))
            if kept:
                found.setdefault(f"{code}_{script}", {})[record.content_id] = kept
    return {tag: _split(found[tag], config) for tag in sorted(found)}


def cut_samples(lines: Sequence[str], lengths: Sequence[int], repeat_to: int) -> Iterator[str]:
    """Yield samples of the joined lines, cut at blanks into the given lengths in turn.

    A text is cut again, starting with another length, until there are about `repeat_to` letters.
    """
    joined = " ".join(lines)
    passes = max(1, min(len(lengths), round(repeat_to / max(1, len(joined)))))
    for first in range(passes):
        at, turn = 0, first
        while at < len(joined):
            length = lengths[turn % len(lengths)]
            end = _blank_near(joined, at + length)
            sample = joined[at:end].strip()
            if sample:
                yield sample
            at, turn = max(end, at + 1), turn + 1


def _blank_near(text: str, position: int) -> int:
    """The blank after `position`, if one comes within 20 letters; `position` itself otherwise."""
    blank = text.find(" ", position, position + 20)
    return blank if blank != -1 else position


def _own_lines(lines: Iterable[str], code: str, script: str) -> Iterator[str]:
    taken = 0
    for line in lines:
        if taken >= _LETTERS_OF_A_DOCUMENT:
            return
        own, share = text_script(line)
        if line and own == script and share >= _OWN_SHARE and not _is_untranslated(line, code):
            taken += len(line)
            yield line


def _is_untranslated(line: str, code: str) -> bool:
    if code == "eng" or code not in KNOWN:
        return False
    guess = cld2_guess(line)
    return guess.sure and guess.code == "eng"


def _split(documents: dict[str, list[str]], config: LanguageTrainConfig) -> LanguageTexts:
    texts, letters = LanguageTexts(), 0
    share = max(_LETTERS_OF_A_PAGE, 2 * config.max_letters // len(documents))
    for identity in sorted(documents):
        if letters >= config.max_letters:
            break
        of_document = 0
        whole_out = _one_in(config.held_out, identity)
        for line in documents[identity]:
            if of_document >= share:
                break
            of_document += len(line)
            few = len(documents) < _FEW_DOCUMENTS
            out = _one_in(config.held_out, line) if few else whole_out
            (texts.held_out if out else texts.train).append(line)
        letters += of_document
    return texts


def _one_in(number: int, text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % number == 0
