"""Autotuning: which of several implementations to use on this machine, measured once.

A measurement is kept in the cache folder under a hash of what was measured (source, versions) and
of the processor, so that it is made again only when one of them changes. One whose rounds disagree
about the choice is not kept: the next process measures again. Results may differ between
implementations within their error budgets; record the choice to reproduce the same bits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from stamm.base.cache_folder import cache_folder, file_lock
from stamm.base.errors import DataError, RunError
from stamm.base.files import read_json, sha256_value, write_json

# 1 held wall time, which depends on the load of the machine; 2 that of all threads and single rounds
SCHEMA = 3
_FOLDER = "autotune"
_ROUNDS = 7
_LEAST = 3  # rounds, however long they take: a single round cannot disagree
_ATTEMPTS = 3  # of `_ROUNDS` each
_AGREEING = 0.75  # share of the rounds that must lead to the same choice
_NOISE = 0.05
_SECONDS = 1.0  # of processor time; then an attempt begins no further round


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The times of some implementations of one operation.

    operation   what was measured, with its shape class: "attention float32 T=256 E=32"
    processor   model, capability and number of threads
    seconds     per implementation the shortest processor time of a call in the calling thread; the
                preferred one comes first
    sure        whether the rounds agree about the choice
    """

    operation: str
    processor: str
    seconds: Mapping[str, float]
    sure: bool = True

    @property
    def chosen(self) -> str:
        """The implementation to use: the first, unless another saves more than 5 % of its time.

        Two measurements of one implementation differ by as much.
        """
        first = next(iter(self.seconds))
        fastest = min(self.seconds, key=self.seconds.__getitem__)
        clearly = self.seconds[fastest] < (1 - _NOISE) * self.seconds[first]
        return fastest if clearly else first


def measured(
    operation: str,
    implementations: Mapping[str, Callable[[], object]],
    *,
    content: Any,
    processor: str,
) -> Measurement:
    """The times of `implementations`, from the cache or measured now.

    Each is called once for its start-up costs, then in turns, so that all are timed under the same load. The
    shortest processor time of the calling thread counts, which has its share of parallel loops and
    waits for the others: wall time on a busy machine is that of other processes, and the time of all
    threads together is the same with one thread and with many. Where the rounds disagree about the
    choice there are more of them.

    content   a JSON value that changes when the implementations do: hashes, versions
    Edge      of concurrent processes on one machine one measures and the others wait; without a
              readable and writable cache every process measures
    Checked   tests/unit/base/test_autotune.py
    """
    folder = cache_folder(_FOLDER)
    if folder is None:
        return _measure(operation, implementations, processor)
    key = sha256_value([SCHEMA, operation, list(implementations), content, processor])
    path = folder / f"{key}.json"
    with file_lock(folder / f"{key}.lock"):
        try:
            cached = _read(read_json(path))
            if set(cached.seconds) == set(implementations):
                return cached
        except (DataError, OSError):
            pass  # not measured yet, or damaged: measured again
        made = _measure(operation, implementations, processor)
        if not made.sure:
            return made
        with contextlib.suppress(OSError, RunError):
            write_json(path, {"schema": SCHEMA, **asdict(made)})
        return made


def measurements(processor: str) -> list[Measurement]:
    """Everything that was measured on processors whose description begins so, by operation."""
    folder = cache_folder(_FOLDER)
    cached = []
    for path in [] if folder is None else sorted(folder.glob("*.json")):
        with contextlib.suppress(DataError, OSError):
            cached.append(_read(read_json(path)))
    return sorted((m for m in cached if m.processor.startswith(processor)), key=_order)


def _order(measurement: Measurement) -> tuple[str, str]:
    return measurement.operation, measurement.processor


def _measure(
    operation: str, implementations: Mapping[str, Callable[[], object]], processor: str
) -> Measurement:
    for call in implementations.values():
        call()
    rounds: list[dict[str, float]] = []
    for _ in range(_ATTEMPTS):
        rounds += _rounds(implementations)
        shortest = {name: min(times[name] for times in rounds) for name in implementations}
        made = Measurement(operation=operation, processor=processor, seconds=shortest)
        choices = [replace(made, seconds=times).chosen for times in rounds]
        first = next(iter(implementations))
        # Which of several is the fastest does not matter as much as whether one beats the first.
        agreeing = sum((choice == first) == (made.chosen == first) for choice in choices)
        if agreeing >= _AGREEING * len(rounds):
            return made
    return replace(made, sure=False)


def _rounds(implementations: Mapping[str, Callable[[], object]]) -> list[dict[str, float]]:
    """The processor time of a call of each, several times, in an order that rotates."""
    names = list(implementations)
    rounds: list[dict[str, float]] = []
    began = time.thread_time()
    for turn in range(_ROUNDS):
        times = {}
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.thread_time()
            implementations[name]()
            times[name] = time.thread_time() - start
        rounds.append({name: times[name] for name in names})
        if turn + 1 >= _LEAST and time.thread_time() - began > _SECONDS:
            break
    return rounds


def _read(held: Any) -> Measurement:
    """Raises   DataError for anything but a measurement."""
    try:
        seconds = {str(name): float(s) for name, s in held["seconds"].items()}
        measurement = Measurement(
            operation=str(held["operation"]), processor=str(held["processor"]), seconds=seconds
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"not a measurement: {error}") from error
    if held.get("schema") != SCHEMA or not seconds or not all(s > 0 for s in seconds.values()):
        raise DataError("not a measurement")
    return measurement
