"""Which licences a policy refuses, and by which of its entries."""

from __future__ import annotations

import pytest

from stamm.align.data.config import APERTUS_REFUSED
from stamm.align.data.prepare_job import normalized_licence, refused_by


@pytest.mark.parametrize(
    ("licence", "refused", "by"),
    [
        ("Apache-2.0", APERTUS_REFUSED, ""),
        ("CC-BY-4.0", APERTUS_REFUSED, ""),
        ("CC-BY-SA-4.0", APERTUS_REFUSED, "share-alike"),
        ("CC-BY-NC-SA-4.0", ("share-alike",), "share-alike"),
        ("CC-BY-NC-ND-4.0", ("no-derivatives",), "no-derivatives"),
        ("LicenseRef-All-Rights-Reserved", (), ""),
        ("LicenseRef-All-Rights-Reserved", ("reserved",), "reserved"),
        ("GPL-3.0-or-later", ("copyleft",), "copyleft"),
        ("MIT", ("mit",), "MIT"),
        ("MIT OR CC-BY-SA-4.0", ("share-alike",), ""),
        ("MIT AND CC-BY-SA-4.0", ("share-alike",), "share-alike"),
        ("see the site", ("unknown",), "unknown"),
        ("", ("unknown",), "unknown"),
        ("", ("share-alike",), ""),
    ],
)
def test_a_licence_is_refused_by_family_identifier_or_as_unknown(
    licence: str, refused: tuple[str, ...], by: str
) -> None:
    assert refused_by(licence, refused) == by


def test_licences_are_written_as_spdx_expressions() -> None:
    assert normalized_licence("apache-2.0") == "Apache-2.0"
    assert normalized_licence("CC BY 4.0") == "CC-BY-4.0"
    assert normalized_licence("my own terms") == "my own terms"
