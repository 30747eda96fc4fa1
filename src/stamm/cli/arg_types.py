"""What a word of the command line must be like before anything is done with it."""

from __future__ import annotations

from stamm.base.errors import ConfigError


def text(word: str) -> str:
    """`word` itself: an argument's type for `argparse`.

    The system hands on a name that is not UTF-8 with marks that no file of a run can hold.

    Raises   ConfigError for such a name.
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{word!r} is not valid UTF-8", where="the command line", fix="Rename the file"
        ) from None
    return word
