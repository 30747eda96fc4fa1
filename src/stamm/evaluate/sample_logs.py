"""Logs of other evaluation tools, item by item: lm-evaluation-harness, lighteval and Inspect.

lm-evaluation-harness   samples_TASK_TIME.jsonl (--log_samples)
lighteval               details_TASK_TIME.parquet
Inspect                 NAME.eval, or NAME.json
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import zstandard
from pyarrow import ArrowException

from stamm.base.errors import DataError
from stamm.base.files import sha256_value
from stamm.base.schema import read_objects

KINDS = "samples_TASK.jsonl of lm-evaluation-harness, details_TASK.parquet of lighteval, .eval or .json of Inspect"
_TIME = re.compile(r"[_-]?\d{4}-\d{2}-\d{2}T[\d.:+-]+$")
_LM_EVAL, _LIGHTEVAL = re.compile(r"samples_(.+)\.jsonl$"), re.compile(r"details_(.+)\.parquet$")
_INSPECT = (".eval", ".json")
_ZSTANDARD = 93  # the method in a ZIP archive, which zipfile does not know before Python 3.14
_MOST_BYTES, _MOST_FILES = 2**30, 10_000
_ROWS = 1024
# What Inspect's scorers return, besides numbers: correct, incorrect, partially correct, no answer.
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


@dataclass(frozen=True)
class LoggedItem:
    """An item of a task, as one model answered it.

    key       the same in every log of the task
    question  hash of what was asked; "" where the log has none
    cluster   items of one cluster depend on each other; "": an item is its own
    values    its metrics, by name
    unread    names of metrics that are not finite numbers here
    """

    key: str
    question: str
    cluster: str
    values: Mapping[str, float]
    unread: frozenset[str] = frozenset()


def find_logs(place: Path) -> dict[str, Path]:
    """The logs in a folder and below it, or the one file, by task.

    Raises   DataError where there is none, or two of one task
    """
    if not place.exists():
        raise DataError(f"{place} does not exist", fix=f"Name a file or a folder: {KINDS}")
    paths = [place] if place.is_file() else sorted(place.rglob("*"))[:_MOST_FILES]
    logs: dict[str, Path] = {}
    for path in paths:
        task = _task_of(path)
        if not task:
            continue
        if task in logs:
            raise DataError(
                f"{place} holds two logs of {task}: {logs[task].name} and {path.name}",
                fix="Name the file",
            )
        logs[task] = path
    if not logs:
        raise DataError(f"{place} holds no log of single items", fix=f"Known: {KINDS}")
    return logs


def read_items(path: Path, cluster: str = "") -> Iterator[LoggedItem]:
    """The items of a log.

    cluster   a field of the items whose value names the cluster, with dots for fields in fields
              (doc.passage_id); "": none, but epochs of a sample of Inspect are one

    Raises    DataError for a damaged log, and where an item has no such field
    """
    if _LM_EVAL.search(path.name):
        rows: Iterable[tuple[str, Any]] = read_objects(path)
        read = _of_lm_eval
    elif _LIGHTEVAL.search(path.name):
        rows, read = _parquet_rows(path), _of_lighteval
    else:
        rows, read = _inspect_samples(path), _of_inspect
    for number, (where, plain) in enumerate(rows):
        if not isinstance(plain, dict):
            raise DataError(f"{where} is not an object", fix=f"Known: {KINDS}")
        try:
            key, question, own_cluster, values = read(plain, number)
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{where} is not an item of an evaluation: {type(error).__name__} {error}",
                fix=f"Known: {KINDS}",
            ) from None
        named = _field(plain, cluster, where) if cluster else own_cluster
        numbers = _numbers(values)
        yield LoggedItem(key, question, named, numbers, frozenset(values.keys() - numbers.keys()))


def _task_of(path: Path) -> str:
    match = _LM_EVAL.search(path.name) or _LIGHTEVAL.search(path.name)
    if match:
        return _TIME.sub("", match[1])
    if path.suffix not in _INSPECT or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return ""
    try:
        head = _inspect_head(path)
    except DataError:
        return ""
    return head if isinstance(head, str) else ""


def _of_lm_eval(plain: dict[str, Any], number: int) -> tuple[str, str, str, dict[str, Any]]:
    names = plain["metrics"]
    filtered = str(plain.get("filter", "none"))
    suffix = "" if filtered == "none" else f",{filtered}"
    values = {f"{name}{suffix}": plain[name] for name in names}
    return f"{plain['doc_id']}", str(plain.get("doc_hash", "")), "", values


def _of_lighteval(plain: dict[str, Any], number: int) -> tuple[str, str, str, dict[str, Any]]:
    if "metric" in plain:  # since version 0.9
        doc = plain["doc"]
        return f"{number}", sha256_value(doc["query"]), "", dict(plain["metric"])
    return f"{number}", sha256_value(plain["example"]), "", dict(plain["metrics"])


def _of_inspect(plain: dict[str, Any], number: int) -> tuple[str, str, str, dict[str, Any]]:
    values: dict[str, Any] = {}
    for scorer, score in (plain.get("scores") or {}).items():
        value = score["value"]
        if isinstance(value, dict):
            values |= {f"{scorer}/{name}": part for name, part in value.items()}
        else:
            values[scorer] = value
    sample = f"{plain['id']}"
    values = {name: _LETTERS.get(v, v) if isinstance(v, str) else v for name, v in values.items()}
    question = sha256_value([plain.get("input"), plain.get("target")])
    return f"{sample} {plain.get('epoch', 1)}", question, sample, values


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    kept = {name: float(v) for name, v in values.items() if isinstance(v, (bool, int, float))}
    return {name: value for name, value in kept.items() if math.isfinite(value)}


def _field(plain: Mapping[str, Any], name: str, where: str) -> str:
    value: Any = plain
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, (str, int)):
        raise DataError(
            f"{where} has no field {name} with a text or a whole number",
            where="cluster",
            fix="Name a field that every item has, such as doc.passage_id",
        )
    return f"{value}"


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        file = parquet.ParquetFile(path)
        wanted = {"metric", "metrics", "doc", "example", "specifics"}
        columns = [name for name in file.schema_arrow.names if name in wanted]
        number = 0
        for batch in file.iter_batches(_ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} is not a Parquet file: {error}", fix="Copy it again") from None


def _inspect_samples(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".json":
        for number, sample in enumerate(_json(path.read_bytes(), path).get("samples") or (), 1):
            yield f"{path}, sample {number}", sample
        return
    with _archive(path) as archive:
        for info in archive.infolist():
            if info.filename.startswith("samples/") and info.filename.endswith(".json"):
                yield f"{path}, {info.filename}", _json(_member(archive, info, path), path)


def _inspect_head(path: Path) -> Any:
    if path.suffix == ".json":
        head = _json(path.read_bytes(), path)
    else:
        with _archive(path) as archive:
            try:
                info = archive.getinfo("header.json")
            except KeyError:
                raise DataError(f"{path} has no header.json: it is not finished") from None
            head = _json(_member(archive, info, path), path)
    task = head.get("eval")
    return task.get("task") if isinstance(task, dict) else None


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a log of Inspect: {error}", fix="Copy it again") from None


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    where = f"{path}, {info.filename}"
    if max(info.file_size, info.compress_size) > _MOST_BYTES:
        raise DataError(f"{where} has {info.file_size:,} bytes, over {_MOST_BYTES:,}")
    try:
        if info.compress_type != _ZSTANDARD:
            return archive.read(info)
        with path.open("rb") as file:  # behind the member's own header, of 30 bytes and two texts
            file.seek(info.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            file.seek(name + extra, 1)
            packed = file.read(info.compress_size)
        # The frame need not state its size.
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            data: bytes = reader.read(info.file_size + 1)
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise zipfile.BadZipFile("its checksum differs")
    except (OSError, struct.error, zipfile.BadZipFile, zstandard.ZstdError, zlib.error) as error:
        raise DataError(f"{where} is damaged: {error}", fix="Copy it again") from None
    return data


def _json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}", fix="Copy it again") from None
    return plain if isinstance(plain, dict) else {}
