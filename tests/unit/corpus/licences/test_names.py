"""Addresses and short names of licences become SPDX expressions."""

from __future__ import annotations

import pytest

from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.licences.expression import licence_verdict
from stamm.corpus.licences.names import spdx_expression

DEED = "https://creativecommons.org/licenses"


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        (f"{DEED}/by/4.0/", "CC-BY-4.0"),
        (f"{DEED}/by/4.0", "CC-BY-4.0"),
        (f"{DEED}/by-sa/4.0/deed.de", "CC-BY-SA-4.0"),
        (f"{DEED}/by-nc-nd/4.0/legalcode.fr#section", "CC-BY-NC-ND-4.0"),
        (f"{DEED}/by-sa/3.0/de/", "CC-BY-SA-3.0-DE"),
        (f"{DEED}/by/3.0/ch/deed.it", "CC-BY-3.0"),
        (f"{DEED}/by-nc/3.0/igo/", "CC-BY-NC-3.0-IGO"),
        (f"{DEED}/by-nd-nc/1.0/", "CC-BY-NC-ND-1.0"),
        (f"{DEED}/sa/1.0/", "CC-SA-1.0"),
        (f"{DEED}/nc/1.0/", "LicenseRef-CC-BY-NC"),
        (f"{DEED}/by-sa/", "LicenseRef-CC-BY-SA"),
        (f"{DEED}/publicdomain/", "CC-PDDC"),
        (f"{DEED}/sampling+/1.0/", ""),
        (f"{DEED}/by-by/4.0/", ""),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("//www.creativecommons.org/publicdomain/mark/1.0/deed.en", "CC-PDM-1.0"),
        ("HTTPS://CreativeCommons.org/Licenses/BY/4.0/", "CC-BY-4.0"),
        ("https://creativecommons.org/choose/", ""),
        ("https://creativecommons.org.evil.example/licenses/by/4.0/", ""),
        ("https://evil.example/?u=https://example.org/by/4.0", ""),
        ("https://opensource.org/licenses/MIT", "MIT"),
        ("https://opensource.org/license/bsd-3-clause/", "BSD-3-Clause"),
        ("https://spdx.org/licenses/Apache-2.0.html", "Apache-2.0"),
        ("http://www.apache.org/licenses/LICENSE-2.0.txt", "Apache-2.0"),
        ("https://www.gnu.org/licenses/gpl-3.0.en.html", "GPL-3.0-only"),
        ("https://www.gnu.org/licenses/old-licenses/gpl-2.0.html", "GPL-2.0-only"),
        ("https://www.gnu.org/licenses/fdl-1.3.html", "GFDL-1.3-only"),
        ("https://www.gnu.org/licenses/", ""),
        (
            "https://www.nationalarchives.gov.uk/doc/open-government-licence/version/3/",
            "OGL-UK-3.0",
        ),
        ("https://opendatacommons.org/licenses/odbl/1-0/", "ODbL-1.0"),
        ("MIT OR Apache-2.0", "Apache-2.0 OR MIT"),
        ("CC BY 4.0", "CC-BY-4.0"),
        ("cc-by-nc-sa 3.0", "CC-BY-NC-SA-3.0"),
        ("Creative Commons Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("Creative Commons Attribution-NonCommercial-NoDerivs 3.0", "CC-BY-NC-ND-3.0"),
        ("Public Domain", "LicenseRef-Public-Domain"),
        ("© 2020 A. All rights reserved.", "LicenseRef-All-Rights-Reserved"),
        ("/license", ""),
        ("", ""),
        ("Copyright 2020", ""),
        ("MIT" * 1000, ""),
    ],
)
def test_expression_of(value: str, expression: str) -> None:
    assert spdx_expression(value) == expression


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        ("not licensed under CC-BY", ""),
        ("This work is NOT licensed  under CC BY 4.0", ""),
        ("No longer available under CC BY", ""),
        ("Dieser Text steht nicht unter CC BY 4.0", ""),
        ("Ce texte n’est pas sous CC BY", ""),
        ("Unless otherwise noted, CC BY 4.0", "CC-BY-4.0"),
        ("Sofern nicht anders angegeben: CC BY 4.0", "CC-BY-4.0"),
        ("All rights reserved. CC BY 4.0", "LicenseRef-All-Rights-Reserved"),
        ("CC BY, for non-commercial use only", "LicenseRef-CC-BY-NC"),
        ("CC BY 4.0 (no derivatives)", "CC-BY-ND-4.0"),
        ("CC0 1.0 Universal", "CC0-1.0"),
        ("MIT" + " " * 500 + "AND GPL-3.0-only", ""),
        ("MIT OR " * 100 + "MIT", ""),
    ],
)
def test_sentences_that_deny_narrow_or_hide(value: str, expression: str) -> None:
    assert spdx_expression(value) == expression


UNKNOWN = "LicenseRef-Unknown-Terms"


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        ("CC BY 4.0 (text), CC BY-NC 4.0 (images)", "CC-BY-4.0 AND CC-BY-NC-4.0"),
        (f"{DEED}/by/4.0/ and {DEED}/by-nc/4.0/", "CC-BY-4.0 AND CC-BY-NC-4.0"),
        (f"{DEED}/by/4.0/;{DEED}/by-nc/4.0/", "CC-BY-4.0 AND CC-BY-NC-4.0"),
        (f"{DEED}/by/4.0/{DEED}/by-nc/4.0/", "CC-BY-4.0 AND CC-BY-NC-4.0"),
        ("CC-BY-SA-3.0 AND GFDL", f"CC-BY-SA-3.0 AND {UNKNOWN}"),
        ("CC BY 4.0 or GPLv3", f"CC-BY-4.0 AND {UNKNOWN}"),
        ("CC BY 4.0 or MIT License", "CC-BY-4.0 OR MIT"),
        ("Dual licensed under MIT and Apache License 2.0", "Apache-2.0 OR MIT"),
        ("MIT, ISC or Apache-2.0 license", "Apache-2.0 OR ISC OR MIT"),
        ("MIT and ISC or Apache-2.0 license", "Apache-2.0 AND ISC AND MIT"),
        ("CC BY 4.0 (text), CC BY-NC 4.0 (images or videos)", "CC-BY-4.0 AND CC-BY-NC-4.0"),
        ("CC BY 4.0 (images)", f"CC-BY-4.0 AND {UNKNOWN}"),
        ("CC BY 4.0, no AI training", f"CC-BY-4.0 AND {UNKNOWN}"),
        (f"{DEED}/by/4.0/ but not for AI", f"CC-BY-4.0 AND {UNKNOWN}"),
        (f"{DEED}/by/4.0/ https://example.org/terms", f"CC-BY-4.0 AND {UNKNOWN}"),
        (f"This work is not licensed under {DEED}/by/4.0/", ""),
        (f"{DEED}/by/4.0/ All rights reserved", "LicenseRef-All-Rights-Reserved"),
        ("MIT, non-commercial use only", f"{UNKNOWN} AND MIT"),
        (f"Creative Commons Attribution ({DEED}/by/4.0/)", "CC-BY-4.0"),
        (f"Creative Commons Attribution ({DEED}/by-nc/4.0/)", "CC-BY-NC-4.0 AND LicenseRef-CC-BY"),
        ("© 2020 Anna Müller. Licensed under CC BY 4.0 International License.", "CC-BY-4.0"),
        ("Dieser Text steht unter der Lizenz CC BY-SA 3.0 DE", "CC-BY-SA-3.0"),
        ("Lizenziert mit CC BY 4.0", f"CC-BY-4.0 AND {UNKNOWN}"),
        ("CC BY 4.0 or any later version", "CC-BY-4.0"),
    ],
)
def test_a_value_is_understood_whole(value: str, expression: str) -> None:
    assert spdx_expression(value) == expression


@pytest.mark.parametrize("name", ["GPL-2.0-with-classpath-exception", "eCos-2.0", "wxWindows"])
def test_deprecated_names_of_copyleft_are_copyleft(name: str) -> None:
    assert licence_verdict(name, LicenceConfig(unknown="allow")) == "denied"
