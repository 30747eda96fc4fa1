"""Which licences a corpus takes. Light: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stamm.base.config import validate


@dataclass(frozen=True, kw_only=True)
class LicenceConfig:
    """Which licences a corpus takes, by family (stamm.corpus.licences.families), and by name.

    Public-domain, permissive and attribution licences are taken always.

    share_alike      CC-BY-SA, ODbL: adaptations under the same terms
    copyleft         GPL, MPL, EUPL and their kin
    noncommercial    CC-BY-NC and its kin
    no_derivatives   CC-BY-ND and its kin
    allow, deny      SPDX identifiers taken or refused whatever their family; deny wins
    unknown          a document whose licence is not named, or not known
    """

    share_alike: bool = True
    copyleft: bool = False
    noncommercial: bool = False
    no_derivatives: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    unknown: Literal["allow", "drop"] = "drop"

    def __post_init__(self) -> None:
        named = "must name SPDX identifiers such as MIT, one each"
        for field, values in (("allow", self.allow), ("deny", self.deny)):
            single = all(value and value == value.strip() and " " not in value for value in values)
            validate(self, (field, single, named))
        both = not {a.lower() for a in self.allow} & {d.lower() for d in self.deny}
        validate(self, ("allow", both, "names a licence that deny names too"))
