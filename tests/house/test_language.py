"""The package and its documents use the field's terms: what is banned, and what must be there.

`tests/house/language_allowance.json` holds what is still to be rewritten, and only shrinks.
`python -m tools.language --list src/stamm/FOLDER` shows each hit with what to write instead;
`python -m tools.language` writes the smaller counts back.
"""

from __future__ import annotations

from tools.language import allowed, found, grown

COMMAND = "python -m tools.language"


def test_no_banned_phrase_or_name_is_added_and_no_term_lost() -> None:
    lines = grown(found(), allowed())
    assert not lines, (
        "\n".join(lines) + f"\n`{COMMAND} --list PATH` shows each hit; a file that was only moved"
        f" is accepted by `{COMMAND}`"
    )


def test_the_allowance_shrinks_with_what_was_rewritten() -> None:
    lines = grown(allowed(), found())
    assert not lines, f"{len(lines)} were rewritten: run `{COMMAND}`\n" + "\n".join(lines[:20])
