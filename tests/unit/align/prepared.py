"""Rows written as JSONL, and the prepare job run on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stamm.align.data.config import PrepareConfig
from stamm.align.data.prepare_job import run
from stamm.base.console import NoProgress, Progress
from stamm.runs.job import Workspace
from stamm.tokenizer.tokenizer import FILE
from tests.unit.chat.conversations import DESCRIPTION


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    """A row with one question and one answer."""
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, **more}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write rows as JSON lines; the path as a string."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prepare(
    folder: Path,
    given: list[dict[str, Any]],
    rows: Path | None = None,
    progress: Progress | None = None,
    **config: Any,
) -> Path:
    """Run the job with the small tokenizer of the chat tests; the folder it wrote.

    given   the rows of its data
    rows    the input of that name

    Any share of bad rows is accepted, unless max_bad_rows is given.
    """
    tokenizer, out = folder / "tokenizer", folder / "prepared"
    tokenizer.mkdir(parents=True, exist_ok=True)
    out.mkdir(exist_ok=True)
    (tokenizer / FILE).write_text(DESCRIPTION)
    data = (write_rows(folder / "rows.jsonl", given),)
    config = {"data": data, "context": 256, "max_bad_rows": 1.0, **config}
    inputs = {"tokenizer": tokenizer, **({} if rows is None else {"rows": rows})}
    run(
        PrepareConfig(**config),
        Workspace(folder=out, inputs=inputs, progress=progress or NoProgress()),
    )
    return out


def bad_rows(out: Path) -> list[tuple[int, str]]:
    """Row number and reason of each line of bad_rows.jsonl."""
    lines = (out / "bad_rows.jsonl").read_text().splitlines()
    return [(line["row"], line["reason"]) for line in map(json.loads, lines)]
