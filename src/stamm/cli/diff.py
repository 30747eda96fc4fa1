"""`stamm diff`: configuration keys in which two runs or recipes differ."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from stamm.base.config import differences, to_plain
from stamm.base.errors import ConfigError, DataError
from stamm.base.schema import read_record
from stamm.cli.arg_types import text
from stamm.cli.output import print_json, print_table
from stamm.recipes.resolve import resolve
from stamm.runs.records import ConfigFile


def arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the arguments of `diff`."""
    parser.add_argument("left", type=text, help="a run folder or a recipe")
    parser.add_argument("right", type=text, help="a run folder or a recipe")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace, verb: str) -> int:
    """Print the differing keys; exit 1 when there are any, as diff does."""
    rows = differences(_plain(options.left), _plain(options.right))
    if options.json:
        print_json([{"key": key, "left": left, "right": right} for key, left, right in rows])
    elif rows:
        cells = [[key, str(left), str(right)] for key, left, right in rows]
        print_table(["key", options.left, options.right], cells, wrap=True)
    else:
        print("no difference")
    return 1 if rows else 0


def _plain(word: str) -> Any:
    path = Path(word) / "config.json"
    if path.is_file():
        return read_record(ConfigFile, path).config
    missing = DataError(
        f"{word} is not a run folder: it has no config.json"
        if Path(word).is_dir()
        else f"{word} does not exist",
        fix="`stamm ls runs` lists the runs in runs/",
    )
    if os.sep in word and not word.partition(":")[0].endswith(".py"):
        raise missing
    if Path(word).is_dir():
        raise missing
    try:
        return to_plain(resolve(word, ()).config)
    except ConfigError as error:
        if not error.what.startswith("unknown recipe"):
            raise
        raise ConfigError(
            f"{word!r} is neither a run folder nor a recipe",
            fix=f"`stamm ls runs` lists runs. {error.fix}",
        ) from None
