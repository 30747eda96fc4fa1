"""`stamm show ledger RUN url=…`: decision, rule and date for documents of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stamm.base.errors import ConfigError
from stamm.base.units import bytes_text
from stamm.cli.output import print_json, print_pairs

_SHOWN = 20
_MOST_RANGES = 8


def show_ledger(words: Sequence[str], as_json: bool) -> int:
    """Print matching rows of a run's ledger; returns 1 when there are none."""
    from stamm.corpus.ledger import COLUMNS as LEDGER_COLUMNS
    from stamm.corpus.ledger import reason_text
    from stamm.corpus.lookup import COLUMNS, look_up

    if not words or "=" in words[0]:
        raise ConfigError(
            "`show ledger` needs a run",
            fix="Such as `stamm show ledger runs/demo url=https://example.org/page`",
        )
    run, limit = Path(words[0]), _SHOWN
    wanted: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(
                f"{word!r} is not a column=value pair",
                fix=f"Write name=value; names are {', '.join(COLUMNS)}",
            )
        if name == "limit":
            limit = _limit(value)
        else:
            wanted[name] = value
    matches = look_up(run, wanted, limit)
    if as_json:
        print_json({"count": matches.count, "rows": matches.rows})
    else:
        for row in matches.rows:
            print_pairs(_pairs(row, reason_text, LEDGER_COLUMNS))
            print()
        more = matches.count - len(matches.rows)
        print(
            f"{matches.count} documents" + (f", {more} more: limit={matches.count}" if more else "")
        )
    return 0 if matches.count else 1


def _limit(value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) <= 10**6:
        raise ConfigError(f"limit={value} is not a number of documents", fix="Such as limit=100")
    return int(value)


def _pairs(
    row: dict[str, Any], meaning: Callable[[str], str], known: Sequence[str]
) -> list[tuple[str, str]]:
    decision = row["decision"]
    if row["reason"]:
        decision += f": {row['reason']} ({meaning(row['reason'])})"
    replaced = [
        f"{row[name]} {name.removeprefix('pii_')}"
        for name in row
        if name.startswith("pii_") and row[name]
    ]
    pairs = [
        ("document", row["url"] or row["document_id"]),
        ("  identifier", row["document_id"]),
        ("  decision", decision),
        ("  consent", row["consent"]),
        ("  rule", row["rule"]),
        ("  agents", row["agent"]),
        ("  read", row["robots_read"]),
        ("  detail", row["detail"]),
        ("  same text as", row["duplicate_of"]),
        ("  licence", row["licence"]),
        ("  language", row["language"]),
        ("  source", row["source"]),
        ("  path", row["path"]),
        ("  input", row["input_file"] and f"{row['input_file']}, record {row['input_position']}"),
        ("  size", f"{bytes_text(row['bytes_in'])} in, {bytes_text(row['bytes_out'])} out"),
        ("  replaced", ", ".join(replaced)),
        *((f"  {name}", str(row[name])) for name in row if name not in (*known, "tokens")),
        ("  split", row["split"]),
        ("  tokens", _token_ranges(row["tokens"])),
    ]
    return [(name, value) for name, value in pairs if value]


def _token_ranges(tokens: list[dict[str, Any]]) -> str:
    shown = [f"{t['shard']} {t['start']}-{t['stop'] - 1}" for t in tokens[:_MOST_RANGES]]
    more = len(tokens) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
