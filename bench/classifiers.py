"""Quality and speed of text classifiers on hashed n-grams, for toxicity and for quality.

posts            labelled posts in 5 languages and clean documents; HateCheck for evaluation only
cases            the same and HateCheck's cases, split by template
without clean    posts and cases only: what clean documents improve
fastText         the same posts and split, for its AUC
planted          one toxic post put into a clean page of a source without training texts
prose            quality, from sources: guides against novels, PEPs, command pages; evaluated on
                 other sources
answers          quality, from people: the chosen against the rejected answer of HH-RLHF

The data is a folder of the sets named below, each a .jsonl.zst; docs/log/2026-11-22-heads.md lists
their sources and licences. Texts are neither printed nor stored.

Run      python -m bench.classifiers DATA [--out FILE.jsonl] [--only cases,planted]
Prints   one JSON line per part; with --out appends it, with the machine and the commit
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import zstandard

from stamm.base.config import to_plain
from stamm.base.files import read_json
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.corpus.classifiers.config import ClassifierConfig, FeatureConfig
from stamm.corpus.classifiers.evaluate import auc
from stamm.corpus.classifiers.examples import LabelledText, read_examples, split_of
from stamm.corpus.classifiers.features import normalize_spelling
from stamm.corpus.classifiers.job import train
from stamm.runs.job import Workspace
from stamm.runs.manifest import environment

POSTS = "toxicity/natural_5lang"
CASES = "toxicity/hatecheck_11lang"
CLEAN = {
    "novels": "eltec-novels/eltec_chapters",
    "guides": "opensource-guide/articles",
    "laws": "fedlex-ch/laws",
    "rights": "udhr/udhr",
    "commands": "tldr-pages/pages",
    "speeches": "us-speeches/speeches",
}
UNSEEN = {
    "peps": "peps/peps",
    "18f": "18f-blog/posts",
    "helm": "helm-docs/docs",
    "bibles": "bible-pd/chapters",
    "wikipedia": "eval/xquad",
    "causes": "eval/xcopa",
    "arithmetic": "instruct-gsm8k/gsm8k",
}
ANSWERS = "preference-hh-rlhf/harmless_base_test"
WINDOWS = (60, 200, 1000)
PROSE_WINDOW = 2000
_ENGLISH = "eng_Latn"

Row = dict[str, Any]


class Data:
    """The sets of a folder, written as a head's inputs into `folder`, each once."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder

    def rows(self, name: str) -> Iterator[Row]:
        """The rows of a set."""
        with (self._root / f"{name}.jsonl.zst").open("rb") as file:
            text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")
            yield from map(json.loads, text)

    def write(self, name: str, rows: Callable[[], Iterable[Row]]) -> str:
        """The path of the input called `name`, made of `rows` if it is not there."""
        path = self._folder / f"{name}.jsonl"
        if not path.exists():
            with path.open("w") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows())
        return str(path)

    def posts(self) -> str:
        """Labelled posts."""
        return self.write("posts", lambda: map(_labelled, self.rows(POSTS)))

    def cases(self) -> str:
        """HateCheck; the cases of one template, in all languages, are one group."""
        return self.write("cases", lambda: map(_labelled, self.rows(CASES)))

    def clean(self, short: str, set_name: str) -> str:
        """Documents that count as clean."""
        return self.write(short, lambda: (_document(short, row) for row in self.rows(set_name)))

    def english(self, short: str, set_name: str, label: int) -> str:
        """The English documents of a source, all with one label."""

        def rows() -> Iterator[Row]:
            for row in self.rows(set_name):
                if row["language"] == _ENGLISH:
                    yield {**_document(short, row), "label": label}

        return self.write(f"{short}-{label}", rows)

    def answers(self) -> str:
        """The last answer of each dialogue, chosen 1 or rejected 0; a pair is one group."""

        def rows() -> Iterator[Row]:
            for row in self.rows(ANSWERS):
                for label, key in ((1, "chosen"), (0, "rejected")):
                    answer = row[key].rsplit("Assistant:", 1)[-1]
                    group = str(row["id"])
                    yield {"text": answer, "label": label, "language": _ENGLISH, "group": group}

        return self.write("answers", rows)


def _labelled(row: Row) -> Row:
    template = row.get("templ_id")
    return {
        "text": row["text"],
        "label": row["label"],
        "language": row["language"],
        "source": row["source"],
        "group": f"template {template}" if template else "",
        "functionality": row.get("functionality", ""),
    }


def _document(short: str, row: Row) -> Row:
    group = {"novels": lambda: row["id"].rsplit(":", 1)[0], "wikipedia": lambda: row["title"]}
    return {
        "text": row.get("text") or row.get("prompt") or row["premise"],
        "language": row["language"],
        "source": short,
        "group": group[short]() if short in group else "",
    }


def trained(data: Data, folder: Path, name: str) -> Row:
    """The report of the training called `name`; the head stays in folder/name."""
    clean = tuple(data.clean(short, path) for short, path in CLEAN.items())
    unseen = tuple(data.clean(short, path) for short, path in UNSEEN.items())
    prose = FeatureConfig(window_characters=PROSE_WINDOW)
    config = {
        "posts": lambda: ClassifierConfig(
            labelled=(data.posts(),),
            clean=clean,
            unseen_labelled=(data.cases(),),
            unseen_clean=unseen,
        ),
        "cases": lambda: ClassifierConfig(
            labelled=(data.posts(), data.cases()), clean=clean, unseen_clean=unseen
        ),
        "without clean": lambda: ClassifierConfig(
            labelled=(data.posts(), data.cases()), unseen_clean=unseen + clean
        ),
        "prose": lambda: ClassifierConfig(
            labelled=(
                data.english("guides", CLEAN["guides"], 1),
                data.english("novels", CLEAN["novels"], 0),
                data.english("peps", UNSEEN["peps"], 0),
                data.english("commands", CLEAN["commands"], 0),
            ),
            unseen_labelled=(
                data.english("18f", UNSEEN["18f"], 1),
                data.english("helm", UNSEEN["helm"], 0),
                data.english("speeches", CLEAN["speeches"], 0),
            ),
            unseen_clean=(data.clean("wikipedia", UNSEEN["wikipedia"]),),
            features=prose,
            pooling="first",
            calibrate=0.2,
            min_texts=10,
        ),
        "answers": lambda: ClassifierConfig(
            labelled=(data.answers(),), features=prose, pooling="first", min_texts=50
        ),
    }[name]()
    return fitted(config, folder / name)


def fitted(config: ClassifierConfig, folder: Path) -> Row:
    """The report of a training, without its paths, with the seconds it took."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    train(config, Workspace(folder=folder))
    report = read_json(folder / "report.json")
    report["config"] = to_plain(config.features) | {"pooling": config.pooling}
    return {**report, "seconds": round(time.perf_counter() - started, 1)}


def planted(data: Data, folder: Path, window: int) -> Row:
    """How well a page with one toxic post in it is told from the same page without.

    Pages     at most 400 a language from helm, 18F and Wikipedia, 1,500 to 8,000 characters kept
    Posts     of the test part, toxic; put between two words at a place that a rule chooses
    Recall    above the score that 5 % of the pages without exceed
    """
    config = ClassifierConfig(
        labelled=(data.posts(), data.cases()),
        clean=tuple(data.clean(short, path) for short, path in CLEAN.items()),
        features=FeatureConfig(window_characters=window),
    )
    fitted(config, folder / f"window {window}")
    head = TextClassifier.load(folder / f"window {window}")
    paths = [data.clean(short, UNSEEN[short]) for short in ("helm", "18f", "wikipedia")]
    pages = read_examples(map(Path, paths), labelled=False)
    toxic = [
        e
        for e in read_examples([Path(data.posts())], labelled=True)
        if e.label and split_of(e.group, config.seed, config.test, config.calibrate) == "test"
    ]
    found = {}
    for language in ("deu_Latn", "eng_Latn", "fra_Latn", "por_Latn"):
        texts = [e.text[:8000] for e in pages if e.language == language and len(e.text) > 1500]
        posts = [e.text for e in toxic if e.language == language]
        plain = np.array([head.margin(text) for text in texts[:400]])
        mixed = np.array(
            [head.margin(_plant(t, posts[k % len(posts)], k)) for k, t in enumerate(texts[:400])]
        )
        labels = np.repeat(np.array([1, 0], dtype=np.int8), plain.size)
        area = auc(labels, np.concatenate([mixed, plain]))
        above = float((mixed > np.quantile(plain, 0.95)).mean())
        found[language] = {"pages": plain.size, "auc": area, "recall": above}
    return {"window": window, "languages": found}


def _plant(page: str, post: str, number: int) -> str:
    at = max(0, page.find(" ", number * 7919 % len(page)))
    return f"{page[:at]} {post} {page[at:]}"


def rival(data: Data) -> Row:
    """AUC of fastText on the test part of the posts, by language."""
    config = ClassifierConfig(labelled=(data.posts(),))
    sides: dict[str, list[LabelledText]] = {"train": [], "calibrate": [], "test": []}
    for example in read_examples([Path(data.posts())], labelled=True):
        side = split_of(example.group, config.seed, config.test, config.calibrate)
        sides[side].append(example)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for example in sides["train"]:
            file.write(f"__label__{example.label} {normalize_spelling(example.text)}\n")
        file.flush()
        model = fasttext.train_supervised(
            file.name, minn=2, maxn=5, dim=32, epoch=10, lr=0.3, bucket=2**20, thread=1, verbose=0
        )
    found: dict[str, float | None] = {}
    for language in sorted({e.language for e in sides["test"]}):
        here = [e for e in sides["test"] if e.language == language]
        answers = [model.predict(normalize_spelling(e.text) or " ", k=2) for e in here]
        scores = [dict(zip(*answer, strict=True)).get("__label__1", 0.0) for answer in answers]
        found[language] = auc(np.array([e.label for e in here], dtype=np.int8), np.array(scores))
    return {"auc": found}


def speed(data: Data, folder: Path) -> Row:
    """Documents and megabytes a second in one thread, and how long a head takes to load."""
    texts = [
        row["text"] for name in ("helm-docs/docs", "18f-blog/posts") for row in data.rows(name)
    ]
    size = sum(len(text.encode()) for text in texts)
    loads, passes = [], []
    for _ in range(5):
        started = time.perf_counter()
        head = TextClassifier.load(folder / "cases")
        loads.append(time.perf_counter() - started)
        started = time.perf_counter()
        for text in texts:
            head.score(text, _ENGLISH)
        passes.append(time.perf_counter() - started)
    seconds = statistics.median(passes)
    return {
        "documents": len(texts),
        "megabytes": round(size / 1e6, 2),
        "documents_per_s": round(len(texts) / seconds),
        "megabytes_per_s": round(size / 1e6 / seconds, 2),
        "load_s": round(statistics.median(loads), 4),
        "passes_s": [round(p, 2) for p in passes],
    }


def main() -> None:
    """Measure every part and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = Data(arguments.data, folder)
        parts: dict[str, Callable[[], Row]] = {
            "cases": lambda: trained(data, folder, "cases"),
            "speed": lambda: speed(data, folder),
            "posts": lambda: trained(data, folder, "posts"),
            "fastText": lambda: rival(data),
            "prose": lambda: trained(data, folder, "prose"),
            "answers": lambda: trained(data, folder, "answers"),
            "without clean": lambda: trained(data, folder, "without clean"),
            "planted": lambda: {"windows": [planted(data, folder, w) for w in WINDOWS]},
        }
        for part_name in arguments.only.split(",") if arguments.only else parts:
            line = json.dumps({"part": part_name, **parts[part_name]()})
            print(line, flush=True)
            if arguments.out:
                with arguments.out.open("a") as file:
                    file.write(json.dumps({**json.loads(line), "machine": environment()}) + "\n")


if __name__ == "__main__":
    main()
