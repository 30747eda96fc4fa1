"""Argument types of the command line, and arguments that several verbs have."""

from __future__ import annotations

import argparse
from pathlib import Path

from stamm.base.errors import ConfigError


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


def new_folder(word: str) -> Path:
    """The folder `word`, which a verb writes beside itself and then renames.

    Raises   ConfigError for the working folder or one above it, which cannot be replaced.
    """
    folder = Path(word)
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(
            f"--out {word} is the working folder, or one above it", fix="Name a folder below it"
        )
    return folder


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
