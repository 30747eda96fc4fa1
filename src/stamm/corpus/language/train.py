"""Training job of the language model, on documents with a language tag."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, write_json
from stamm.corpus.documents import UnreadableRecord
from stamm.corpus.inputs import locate
from stamm.corpus.language.codes import text_script, to_iso639_3
from stamm.corpus.language.config import LanguageTrainConfig
from stamm.corpus.language.identify import KNOWN, cld2_guess
from stamm.corpus.language.ngrams import LABEL, NgramModel, train_ngrams
from stamm.corpus.language.text_sample import plain_letters
from stamm.corpus.limits import ReadLimits
from stamm.corpus.readers.open import read_input
from stamm.runs.job import Workspace

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
    lines_by_tag: dict[str, dict[str, list[str]]] = {}
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
                lines_by_tag.setdefault(f"{code}_{script}", {})[record.content_id] = kept
    return {tag: _split(lines_by_tag[tag], config) for tag in sorted(lines_by_tag)}


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
    num_letters = 0
    for line in lines:
        if num_letters >= _LETTERS_OF_A_DOCUMENT:
            return
        own, share = text_script(line)
        if line and own == script and share >= _OWN_SHARE and not _is_untranslated(line, code):
            num_letters += len(line)
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
            by_line = len(documents) < _FEW_DOCUMENTS
            out = _one_in(config.held_out, line) if by_line else whole_out
            (texts.held_out if out else texts.train).append(line)
        letters += of_document
    return texts


def _one_in(number: int, text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % number == 0


MODEL = "languages.ftz"
CARD = "languages.json"
SCHEMA = 1
_TEST_LETTERS = 100


def train(config: LanguageTrainConfig, workspace: Workspace) -> None:
    """Write languages.ftz (a quantised fastText model) and languages.json (its card).

    The card contains the configuration, the hashes of inputs and model, training and held-out
    letters of each language, and the accuracy on held-out samples of 100 letters.
    The same inputs give the same bytes on one machine (`ngrams.train_ngrams`).
    Raises   DataError when fewer than two languages have enough letters.
    Checked  tests/unit/corpus/language/test_language_train.py
    """
    progress = workspace.progress
    progress.begin("languages", config.epochs, "epochs")
    texts = {
        tag: language_texts
        for tag, language_texts in collect_texts(config).items()
        if sum(map(len, language_texts.train)) >= config.min_letters
    }
    if len(texts) < 2:
        raise DataError(
            f"{len(texts)} languages have {config.min_letters} letters or more",
            where="inputs",
            fix="Name documents in at least two languages, or lower min_letters",
        )
    samples = workspace.folder / "samples.txt"
    _write_samples(samples, texts, config)
    train_ngrams(samples, config, workspace.folder / MODEL)
    samples.unlink()
    write_json(workspace.folder / CARD, _card(config, texts, workspace.folder))
    progress.end(f"{len(texts)} languages")


def _write_samples(
    path: Path, texts: dict[str, LanguageTexts], config: LanguageTrainConfig
) -> None:
    """Write the samples interleaved by language: in blocks, the last language would dominate."""
    runs = [
        [
            f"{LABEL}{tag} {sample}\n"
            for sample in cut_samples(language_texts.train, config.lengths, config.repeat_to)
        ]
        for tag, language_texts in texts.items()
    ]
    with path.open("w", encoding="utf-8") as file:
        for line in _interleave(runs):
            file.write(line)


def _interleave(runs: list[list[str]]) -> Iterable[str]:
    """All lines, those of each list evenly spaced from start to end."""
    sort_keys = [
        ((position + 0.5) / len(run), number, position)
        for number, run in enumerate(runs)
        for position in range(len(run))
    ]
    return (runs[number][position] for _, number, position in sorted(sort_keys))


def _card(
    config: LanguageTrainConfig, texts: dict[str, LanguageTexts], folder: Path
) -> dict[str, object]:
    model = NgramModel(folder / MODEL)
    languages, right, total = {}, 0, 0
    for tag, language_texts in texts.items():
        held_out = list(
            itertools.islice(cut_samples(language_texts.held_out, (_TEST_LETTERS,), 0), 200)
        )
        hits = sum(model.predict(sample)[0] == tag for sample in held_out)
        right, total = right + hits, total + len(held_out)
        languages[tag] = {
            "letters": sum(map(len, language_texts.train)),
            "held_out": len(held_out),
            "right": hits,
        }
    return {
        "schema": SCHEMA,
        "config": to_plain(config),
        "inputs": {name: sha256_file(locate(name, "inputs")) for name in config.inputs},
        "sha256": sha256_file(folder / MODEL),
        "bytes": (folder / MODEL).stat().st_size,
        "held_out_right": right / total if total else None,
        "languages": languages,
    }
