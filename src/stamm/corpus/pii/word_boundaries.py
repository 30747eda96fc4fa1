"""Word boundaries for PII patterns: letters of the scripts that separate words by blanks.

Chinese, Japanese or Thai text may directly precede an address or a number; such a letter is not part
of it, and must not hide it.
"""

from __future__ import annotations

import re
from typing import Final

LETTERS = "A-Za-zÀ-ɏͰ-ϿЀ-ӿ"
"""Latin, Greek and Cyrillic letters, for use inside the brackets of a pattern."""

WORD = f"{LETTERS}0-9_"
"""These letters, digits and the underscore."""

# First of the ten digits of scripts in wide use. `_PLAIN` adds wide East Asian and narrow
# typographic characters.
_DIGITS: Final = (0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66,
                  0x0CE6, 0x0D66, 0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810)  # fmt: skip
_PLAIN: Final = {
    **{wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)},
    **{zero + value: ord("0") + value for zero in _DIGITS for value in range(10)},
    **dict.fromkeys((0x2010, 0x2011, 0x2212), ord("-")),
    **dict.fromkeys((0x2007, 0x2009, 0x202F, 0x3000), 0xA0),
}
# All Chinese text has these; without others there is nothing to replace.
_USUAL: Final = "！（），：；？"
_OTHER: Final = re.compile(f"[{''.join(chr(c) for c in _PLAIN if chr(c) not in _USUAL)}]")


def to_ascii_signs(text: str) -> str:
    """`text` with digits of other scripts as ASCII, and wide or narrow characters as usual ones.

    Edge   the result has the length of `text`, so positions are equal in both.
    """
    return text.translate(_PLAIN) if not text.isascii() and _OTHER.search(text) else text
