"""The fastText language model: a linear model over words and character n-grams."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fasttext

from stamm.base.config import from_plain, to_plain
from stamm.base.errors import DataError
from stamm.corpus.language.config import LanguageTrainConfig
from stamm.runs.local_pool import WorkerPool, serve

LABEL: Final = "__label__"
_PERTURB: Final = -6  # M_PERTURB of mallopt(3): fill new memory with the complement of a byte
_ALL_ONES: Final = 255
_PROBE_BYTES: Final = 2**20


class NgramModel:
    """A trained fastText model that predicts the most probable label.

    Raises   DataError when the file is missing or not a fastText model.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._model = fasttext.load_model(str(path))
        except (ValueError, RuntimeError, MemoryError) as error:
            raise DataError(
                f"{path} is not a language model: {error}",
                fix="Name a file that language training wrote",
            ) from None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the model, without prefix."""
        return tuple(sorted(label.removeprefix(LABEL) for label in self._model.labels))

    def predict(self, letters: str) -> tuple[str, float]:
        """The most probable label for one line of words, and its probability."""
        labels, scores = self._model.predict(letters)
        # Sums of probabilities in float32 may end a little above 1.
        return labels[0].removeprefix(LABEL), min(1.0, float(scores[0]))


def train_ngrams(samples: Path, config: LanguageTrainConfig, target: Path) -> None:
    """Train on lines "__label__TAG words" and write the quantized model to `target`.

    Training runs in a process of its own, because it zeroes new memory process-wide. With one
    thread and one seed the same lines give the same bytes on one machine; another processor may
    round sums differently.
    Raises   DataError when training diverges, where memory cannot be zeroed, or when the process
             is killed.
    Source   Joulin et al. 2016, arXiv 1607.01759 (bags of n-grams) and 1612.03651 (quantized).
    """
    task = {"samples": str(samples), "target": str(target), "config": to_plain(config)}
    with WorkerPool(1, __name__) as pool:
        (ended,) = pool.run([("train", task)])
    if ended.answer is None:
        raise DataError(
            f"the process that trains died, {ended.death()}",
            fix="If it was killed, free memory or lower buckets",
        )
    if ended.answer:
        raise DataError(**ended.answer)


def train_here(task: dict[str, Any]) -> dict[str, str]:
    """Train in this process; {}, or the parts of an error."""
    try:
        config = from_plain(LanguageTrainConfig, task["config"])
        _train(Path(task["samples"]), config, Path(task["target"]))
    except DataError as error:
        return {"what": error.what, "where": error.where, "fix": error.fix}
    except Exception as error:
        return {"what": f"the process that trains failed: {error}"}
    return {}


def _train(samples: Path, config: LanguageTrainConfig, target: Path) -> None:
    try:
        with _cleared_memory():
            model = fasttext.train_supervised(
                input=str(samples),
                dim=config.dimensions,
                lr=config.learning_rate,
                epoch=config.epochs,
                minn=config.min_gram,
                maxn=config.max_gram,
                bucket=config.buckets,
                minCount=config.min_word_count,
                wordNgrams=1,
                loss="softmax",
                thread=1,
                seed=config.seed,
                verbose=0,
            )
            # Pairs of values share a code, and norms are quantized separately: without that,
            # accuracy on short sentences was 13 points lower
            # (docs/log/2026-11-22-language-identification.md).
            model.quantize(qnorm=True, dsub=2, verbose=0)
    except RuntimeError as error:
        raise DataError(
            f"training failed: {error}",
            where=f"learning_rate = {config.learning_rate}",
            fix="Lower learning_rate, or give more text",
        ) from None
    model.save_model(str(target))


@contextlib.contextmanager
def _cleared_memory() -> Iterator[None]:
    """Make malloc return zeroed memory, in the whole process.

    fastText 0.9.2 and 0.10.4 with one thread initialize the first tenth of their rows only. The
    others have the previous content of the memory: an earlier model, or NaN. With zeros there,
    training is a function of its input.
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        allocator.mallopt(_PERTURB, _ALL_ONES)
    try:
        if not _is_clear(allocator):
            raise DataError(
                "memory cannot be zeroed here, and fastText reads memory that it never initializes",
                fix="Train on Linux with glibc's allocator; the model works everywhere",
            )
        yield
    finally:
        if hasattr(allocator, "mallopt"):
            allocator.mallopt(_PERTURB, 0)


def _is_clear(allocator: ctypes.CDLL) -> bool:
    """Whether memory that was used and freed is zero when it is allocated again."""
    allocator.malloc.restype = ctypes.c_void_p
    allocator.free.argtypes = (ctypes.c_void_p,)
    used = allocator.malloc(_PROBE_BYTES)
    ctypes.memset(used, 1, _PROBE_BYTES)
    allocator.free(used)
    reused = allocator.malloc(_PROBE_BYTES)
    try:
        return not any(ctypes.string_at(reused, _PROBE_BYTES))
    finally:
        allocator.free(reused)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], train_here))
