"""Licence policy of a corpus. Light: the command line imports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.licences.families import base_name


@dataclass(frozen=True, kw_only=True)
class LicenceConfig:
    """Licences allowed in a corpus, by family (stamm.corpus.licences.families) and by identifier.

    Public-domain, permissive and attribution licences are always allowed.

    share_alike      CC-BY-SA, ODbL: adaptations under the same terms
    copyleft         GPL, MPL, EUPL and similar
    noncommercial    CC-BY-NC and similar
    no_derivatives   CC-BY-ND and similar
    allow, deny      SPDX identifiers allowed or denied whatever their family; deny wins. Denying
                     GPL-3.0, GPL-3.0-only or GPL-3.0-or-later denies all three; allowing GPL-3.0
                     allows all three, and allowing one with a suffix only that one
    unknown          policy for a document without a licence, or with an unknown one. "own": dropped,
                     unless it has neither an address nor a licence, as the user's own text
    """

    share_alike: bool = True
    copyleft: bool = False
    noncommercial: bool = False
    no_derivatives: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    unknown: Literal["allow", "own", "drop"] = "drop"

    def __post_init__(self) -> None:
        named = "must name SPDX identifiers such as MIT, one each"
        for name, values in (("allow", self.allow), ("deny", self.deny)):
            single = all(value and value == value.strip() and " " not in value for value in values)
            validate(self, (name, single, named))
        is_disjoint = not set(map(base_name, self.allow)) & set(map(base_name, self.deny))
        validate(self, ("allow", is_disjoint, "has a licence that is also in deny"))
