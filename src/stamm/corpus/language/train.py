"""Training job of the language model, on documents with a language tag."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from stamm.base.config import to_plain
from stamm.base.errors import DataError
from stamm.base.files import sha256_file, write_json
from stamm.corpus.inputs import locate
from stamm.corpus.language.config import LanguageTrainConfig
from stamm.corpus.language.ngrams import LABEL, NgramModel, train_ngrams
from stamm.corpus.language.samples import LanguageTexts, collect_texts, cut_samples
from stamm.runs.job import Workspace

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
        tag: each
        for tag, each in collect_texts(config).items()
        if sum(map(len, each.train)) >= config.min_letters
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
            for sample in cut_samples(each.train, config.lengths, config.repeat_to)
        ]
        for tag, each in texts.items()
    ]
    with path.open("w", encoding="utf-8") as file:
        for line in _interleave(runs):
            file.write(line)


def _interleave(runs: list[list[str]]) -> Iterable[str]:
    """All lines, those of each list evenly spaced from start to end."""
    places = [
        ((position + 0.5) / len(run), number, position)
        for number, run in enumerate(runs)
        for position in range(len(run))
    ]
    return (runs[number][position] for _, number, position in sorted(places))


def _card(
    config: LanguageTrainConfig, texts: dict[str, LanguageTexts], folder: Path
) -> dict[str, object]:
    model = NgramModel(folder / MODEL)
    languages, right, total = {}, 0, 0
    for tag, each in texts.items():
        held_out = list(itertools.islice(cut_samples(each.held_out, (_TEST_LETTERS,), 0), 200))
        hits = sum(model.predict(sample)[0] == tag for sample in held_out)
        right, total = right + hits, total + len(held_out)
        languages[tag] = {
            "letters": sum(map(len, each.train)),
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
