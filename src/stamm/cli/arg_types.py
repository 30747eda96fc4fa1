"""Argument types of the command line, and arguments that several verbs have."""

from __future__ import annotations

import argparse
from pathlib import Path

from stamm.base.errors import ConfigError, RunError


def text(word: str) -> str:
    """`word`, checked to be valid UTF-8; an argument type for `argparse`.

    Python represents invalid bytes as surrogates, which no file of a run can hold.

    Raises   ConfigError when it is not.
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{word!r} is not valid UTF-8", where="the command line", fix="Rename the file"
        ) from None
    return word


def count(word: str) -> int:
    """`word` as a number from 1; an argument type for `argparse`, which reports what it refuses."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{word} must be at least 1")
    return number


def add_changes(parser: argparse.ArgumentParser, known: str) -> None:
    """Add the arguments key=value that change settings, as `options.changes`.

    known   the keys, for the help text
    """
    parser.add_argument(
        "changes", type=text, nargs="*", default=[], metavar="key=value", help=known
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add --dry-run of a verb that runs a job."""
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be written, run nothing"
    )


def check_model_folder(path: str) -> None:
    """Report a name that is not a folder before the libraries are loaded that open a model.

    Raises   RunError as the verb would
    """
    if not Path(path).is_dir():
        raise RunError(f"{path} is not a folder", fix="Name a run folder or a Hugging Face folder")
