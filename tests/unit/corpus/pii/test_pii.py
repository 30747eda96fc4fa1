"""PII replacement: what is replaced, what is kept, and that only counts remain."""

from __future__ import annotations

import unicodedata

import pytest

from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.patterns import to_ascii_signs, valid_iban
from stamm.corpus.pii.replace import replace_pii

ALL = PiiConfig()


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("Write to jane.doe@example.org.", "Write to <email-pii>."),
        ("<mailto:a+b_c@mail.example.co.uk>", "<mailto:<email-pii>>"),
        ("'x@y.ch', \"z@y.ch\"", "'<email-pii>', \"<email-pii>\""),
        ("élise.müller@bücher.de!", "<email-pii>!"),
        ("почта@пример.рф", "<email-pii>"),
        ("联系contact@example.com谢谢", "联系<email-pii>谢谢"),
        ("a@b.ch,c@d.ch", "<email-pii>,<email-pii>"),
        (
            "https://lists.example.org/list/x@python.org/",
            "https://lists.example.org/list/<email-pii>/",
        ),
        ("mail someone@127.0.0.1.example.org", "mail <email-pii>"),
        ("10 MB of 1.5 x@example.org", "10 MB of 1.5 <email-pii>"),
        ("juan@empresa.com.py", "<email-pii>"),
        ("x@example.xn--p1ai, y", "<email-pii>, y"),
        (f"to {'n' * 40}.{'m' * 40}@example.org", "to <email-pii>"),
        (f"to {'n' * 2}.{'m' * 62}@example.org", "to <email-pii>"),
        ("....x@example.org", "....<email-pii>"),
    ],
)
def test_emails_go(text: str, after: str) -> None:
    cleaned = replace_pii(text, ALL)
    assert cleaned.text == after
    assert cleaned.email == after.count("<email-pii>")


@pytest.mark.parametrize(
    "text",
    [
        "git@github.com:helm/helm.git",
        "icon@2x.png and logo@3x.jpg",
        "@decorator.method",
        "user@localhost",
        "5 apples @ 2.50",
        "https://medium.com/@someone",
        "import pytest\n@pytest.mark.skip\ndef f()",
        "a.@example.org",
        "module@2x.py",
        "a@b",
        "x@y..z",
        "npm install left-pad@1.3.0",
    ],
)
def test_what_is_no_mailbox_stays(text: str) -> None:
    assert replace_pii(text, ALL).text == text


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("from 203.0.114.9 port 22", "from <ip-pii> port 22"),
        ("ping 8.8.8.8.", "ping <ip-pii>."),
        ("http://93.184.216.34:8080/x", "http://<ip-pii>:8080/x"),
        ("93.184.216.34/24", "<ip-pii>/24"),
        ("(93.184.216.34)", "(<ip-pii>)"),
        ("at 2001:4860:4860::8888, yes", "at <ip-pii>, yes"),
        ("see 2a00:1450:4001:0801:0000:0000:0000:1011", "see <ip-pii>"),
        ("[2001:4860:4860::8888]:80", "[<ip-pii>]:80"),
        ("is 2001:4860:4860::8888: fine", "is <ip-pii>: fine"),
        ("地址2001:4860:4860::8888。", "地址<ip-pii>。"),
        ("地址93.184.216.34已", "地址<ip-pii>已"),
        ("from ::ffff:93.184.216.34 on", "from <ip-pii> on"),
        ("64:ff9b::93.184.216.34", "<ip-pii>"),
        ("2a02:1205::5efe:93.184.216.34", "<ip-pii>"),
        ("2001:4860:4860::8888%eth0 is up", "<ip-pii> is up"),
        ("2001:4860:4860::8888/64", "<ip-pii>/64"),
        ("at 2A00:1450:4001:801::200E.", "at <ip-pii>."),
        ("net 2001:4860:: here", "net <ip-pii> here"),
    ],
)
def test_public_addresses_go(text: str, after: str) -> None:
    cleaned = replace_pii(text, ALL)
    assert cleaned.text == after
    assert cleaned.ip == 1


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1 and 10.0.0.1 and 192.168.1.1 and 192.0.2.1",
        "multicast 224.0.0.1",
        "version 120.0.6099.109",
        "version 93.184.216.34",
        "Chrome/93.184.216.34",
        "foo-93.184.216.34.tar.gz",
        "1.2.3.4.5 and 1.2.3",
        "999.184.216.34",
        "3.2.1.4 Scope of this part",
        "v93.184.216.34",
        "93.184.216.34-beta",
        "12:30:45 and aa:bb:cc:dd:ee:ff",
        "2001:db8::1 is documentation",
        "std::vector and be:: and 2001:",
        "2024:12:31",
        "::ffff:10.0.0.1 and 64:ff9b::192.168.1.1",
        "fe80::1%eth0 and ff02::1 and ::1 and fd00::1",
        "2001:4860:4860:1:2:3:4:5:6",
        "2001:4860:4860::88888",
        "2001::4860::1",
    ],
)
def test_impersonal_values_are_kept(text: str) -> None:
    assert replace_pii(text, ALL).text == text


def test_numbers_of_swiss_law_stay_and_addresses_beside_them_go() -> None:
    law = "[^1]: [SR **172.220.111.3**](https://fedlex.data.admin.ch/eli/cc/2001/319)"
    assert replace_pii(law, ALL).text == law
    assert replace_pii("Nach SR 172.220 und 172.220.111.31 gilt", ALL).ip == 0
    assert replace_pii("SR 172.220: der Server 172.220.111.31 gilt", ALL).ip == 1
    # The same number in a text without law is an address.
    assert replace_pii("connect to 172.220.111.31", ALL).ip == 1


IBANS = [
    "CH9300762011623852957",
    "DE89370400440532013000",
    "FR1420041010050500013M02606",
    "NO9386011117947",
    "BE68539007547034",
    "GB29NWBK60161331926819",
    "MT84MALT011000012345MTLCAST001S",
    "IT60X0542811101000000123456",
]


@pytest.mark.parametrize("iban", IBANS)
@pytest.mark.parametrize("separator", ["", " ", "-", "\u00a0"])
def test_ibans_go_in_any_layout(iban: str, separator: str) -> None:
    groups = separator.join(iban[i : i + 4] for i in range(0, len(iban), 4))
    cleaned = replace_pii(f"IBAN: {groups}, Bank", ALL)
    assert cleaned.text == "IBAN: <iban-pii>, Bank"
    assert cleaned.iban == 1


def test_iban_in_uneven_groups_and_before_a_word() -> None:
    assert replace_pii("CH93 0076 2011 6238 5295 7 Zürich", ALL).text == "<iban-pii> Zürich"
    assert replace_pii("DE 89 370400440 532013000", ALL).iban == 1


@pytest.mark.parametrize("gap", ["\n", "\r\n", " \n", "\n    ", "\u202f\n\t"])
def test_iban_over_a_line_break(gap: str) -> None:
    text = f"IBAN CH93 0076{gap}2011 6238 5295 7\nBank"
    assert replace_pii(text, ALL).text == "IBAN <iban-pii>\nBank"
    # An empty line, or a column far to the right, is another block.
    assert replace_pii(text.replace(gap, f"{gap}\n"), ALL).iban == 0
    assert replace_pii(text.replace(gap, "\n" + " " * 40), ALL).iban == 0


@pytest.mark.parametrize(
    "text",
    [
        "CH9300762011623852958",  # check digits wrong
        "CH930076201162385295",  # one short
        "CH93007620116238529577",  # one long
        "XX9300762011623852957",
        "ACH9300762011623852957",
        "ch9300762011623852957",
    ],
)
def test_what_is_no_iban_stays(text: str) -> None:
    assert replace_pii(text, ALL).text == text


def test_valid_iban_catches_every_single_digit_error() -> None:
    good = IBANS[0]
    assert valid_iban(good)
    for place in range(2, len(good)):
        for digit in "0123456789":
            if digit != good[place]:
                assert not valid_iban(good[:place] + digit + good[place + 1 :])


def test_each_kind_can_be_switched_off() -> None:
    text = f"a@b.ch ping 8.8.8.8 {IBANS[0]}"
    text_without = PiiConfig(email=False, ip=False, iban=False, card=False, phone=False)
    assert replace_pii(text, text_without).text == text
    only = replace_pii(text, PiiConfig(email=False, iban=False, card=False, phone=False))
    assert (only.email, only.ip, only.iban) == (0, 1, 0)
    assert only.text == f"a@b.ch ping <ip-pii> {IBANS[0]}"


def test_overlapping_kinds_leave_no_part_in_clear() -> None:
    cleaned = replace_pii("to 4000 0012 3456 7899@example.org", ALL)
    assert cleaned.text == "to <card-pii>"
    assert (cleaned.card, cleaned.email) == (1, 0)


@pytest.mark.parametrize("unit", ["7", "@", "AB12 ", "a", "1.", "::", "(", "+", " ", "\n"])
def test_a_hostile_megabyte_takes_linear_time(unit: str) -> None:
    text = (unit * 1_000_000)[:1_000_000]
    # A step quadratic in a million characters would take hours: the time limit of a test ends it.
    assert replace_pii(text, ALL, "deu_Latn").text == text


@pytest.mark.parametrize(
    "unit",
    [
        "CH93 ",
        "CH9\n",
        "a@",
        "2001:",
        "2001::1%a",
        "8.8.8.8 SR 1.1.1.1 ",
        "1 ",
        "(0) ",
        "0-",
        "4111 ",
    ],
)
def test_text_of_near_hits_takes_linear_time(unit: str) -> None:
    replace_pii((unit * 500_000)[:500_000], ALL, "deu_Latn")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("*_jane@example.com_*", "*<email-pii>_*"),
        ("Mail jane@example.com.1 and jane@example.com-", "Mail <email-pii>.1 and <email-pii>-"),
        ("メール：jane＠example．co．jp まで", "メール：<email-pii> まで"),
        ("口座DE89370400440532013000番", "口座<iban-pii>番"),
        ("IBANDE89 3704 0044 0532 0130 00", "IBAN<iban-pii>"),
        ("card no.4532015112830366, exp 12/27", "card no.<card-pii>, exp 12/27"),
        ("4532\u202f0151\u202f1283\u202f0366", "<card-pii>"),
        ("4532\u20110151\u20111283\u20110366", "<card-pii>"),
        ("カード ４５３２０１５１１２８３０３６６", "カード <card-pii>"),
        ("+41\u202f44\u202f668\u202f18\u202f00", "<phone-pii>"),
        ("+41\u201144\u2011668\u201118\u201100", "<phone-pii>"),
        ("هاتف: +٩٦٦ ١١ ٤٨٨ ٣٨٠٠.", "هاتف: <phone-pii>."),
        ("＋８１ ３-３５８０-３３１１", "<phone-pii>"),
        ("Tel. +41 44 668 18 00Fax +41 44 668 18 01", "Tel. <phone-pii>Fax <phone-pii>"),
        ("ip是8.8.8.8的", "ip是<ip-pii>的"),
        ("服务器８．８．１００．８", "服务器<ip-pii>"),
    ],
)
def test_signs_and_letters_of_other_scripts_hide_nothing(text: str, after: str) -> None:
    assert replace_pii(text, ALL).text == after


def test_plain_signs_move_nothing() -> None:
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x1F000)]))
    plain = to_ascii_signs(every)
    assert len(plain) == len(every)
    for a, b in zip(every, plain, strict=True):
        if a != b and b not in ("-", "\u00a0"):
            value = unicodedata.digit(a, None)
            assert b in (str(value), unicodedata.normalize("NFKC", a))
    assert to_ascii_signs("٠۹०๙０９－＠．\u2011\u202f") == "090909-@.-\u00a0"
