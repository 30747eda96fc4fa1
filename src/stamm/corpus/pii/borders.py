"""Where a word ends: letters of the scripts that separate words by blanks.

Chinese, Japanese or Thai text may run straight into an address or a number; such a letter is no
part of it, and must not hide it.
"""

from __future__ import annotations

LETTERS = "A-Za-zÀ-ɏͰ-ϿЀ-ӿ"
"""Latin, Greek and Cyrillic letters, for use inside the brackets of a pattern."""

WORD = f"{LETTERS}0-9_"
"""These letters, digits and the underscore."""
