"""Requests for deletion find their page however it is written, and none is passed over."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stamm.base.errors import DataError
from stamm.corpus.deletions import (
    Deletions,
    normal_address,
    outcomes,
    read_deletions,
    request_rows,
    unmatched_text,
)

PAGE = "https://münchen.example/straße/a b?q=1"
NORMAL = "https://xn--mnchen-3ya.example/stra%C3%9Fe/a%20b?q=1"
SPELLINGS = (
    PAGE,
    NORMAL,
    "HTTPS://XN--MNCHEN-3YA.EXAMPLE:443/stra%c3%9fe/%61%20b?q=1#part",
    "https://me:secret@münchen.example./straße/a\u200c b?q=1",
    "  https://mün\u00adchen.example/straße/a b?q=1\t",
)
NOBODY = "0" * 32


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asked(path: Path, *lines: str) -> Deletions:
    path.write_text("\n".join(lines), encoding="utf-8")
    return Deletions(read_deletions([path]))


@pytest.mark.parametrize("written", SPELLINGS)
def test_all_spellings_are_one(written: str) -> None:
    assert normal_address(written) == NORMAL


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("HTTPS://me@Bücher.example:443/a b#top", "https://xn--bcher-kva.example/a%20b"),  # docs
        ("http://a.example", "http://a.example/"),
        ("http://a.example:443/", "http://a.example:443/"),
        ("https://a.example?x#y", "https://a.example/?x"),
        ("https://a.example/%2f%7e", "https://a.example/%2F~"),
        ("https://a.example/100%", "https://a.example/100%"),
        ("https://a\\b.example/x", "https://a\\b.example/x"),
        ("no address", "no address"),
        ("", ""),
    ],
)
def test_normal_form_of_corner_cases(url: str, normal: str) -> None:
    assert normal_address(url) == normal == normal_address(normal)


def test_different_pages_stay_apart() -> None:
    others = ["http://a.example/x", "https://a.example/X", "https://a.example/x/"]
    others += ["https://a.example/x?", "https://www.a.example/x", "https://a.example/x%2Fy"]
    assert len({normal_address(url) for url in (*others, "https://a.example/x")}) == 7


@pytest.mark.parametrize("written", SPELLINGS)
@pytest.mark.parametrize("stored", SPELLINGS[:3])
def test_an_address_or_its_hash_finds_every_spelling(
    tmp_path: Path, written: str, stored: str
) -> None:
    by_address = asked(tmp_path / "requests.txt", "# who asks", written)
    (key,) = by_address.keys(stored, NOBODY)
    assert by_address.rule(key) == "requests.txt, line 2"
    by_hash = asked(tmp_path / "requests.txt", f"\u200bSHA256:{sha256(NORMAL)}\u00ad")
    assert by_hash.keys(stored, NOBODY) == [sha256(NORMAL)]
    assert by_hash.keys("https://other.example/", NOBODY) == []


def test_the_hash_of_an_address_as_the_ledger_has_it_is_found(tmp_path: Path) -> None:
    stored = SPELLINGS[2]
    found = asked(tmp_path / "requests.txt", f"sha256:{sha256(stored)}")
    assert found.keys(stored, NOBODY) == [sha256(stored)]


def test_a_part_names_a_file_of_a_repository_and_nothing_of_a_page(tmp_path: Path) -> None:
    files = [f"https://code.example/it#src/{name}.py" for name in ("a", "stra%C3%9Fe")]
    for line, found in (
        ("https://code.example/it#src/a.py", [True, False]),
        ("HTTPS://code.example:443/it#src/straße.py", [False, True]),
        ("https://code.example/it", [True, True]),
        (f"sha256:{sha256('https://code.example/it')}", [True, True]),
        (f"sha256:{sha256(files[0])}", [True, False]),
    ):
        requests = asked(tmp_path / "requests.txt", line)
        assert [bool(requests.keys(url, NOBODY)) for url in files] == found
        page = bool(requests.keys("https://code.example/it", NOBODY))
        assert page == (line != f"sha256:{sha256(files[0])}")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("example.org", "11110110"),
        ("*.EXAMPLE.org.", "11110110"),
        ("a.example.org", "00000110"),
        ("https://example.org/*", "11110000"),
        ("HTTP://me@example.org:80/*", "11110000"),
        ("https://example.org/x/*", "01110000"),
        ("https://example.org/x/y/*", "00100000"),
        ("https://a.example.org:8443/*", "00000010"),
        ("https://example.org/*?x", "00000000"),  # an address with a query
    ],
)
def test_a_domain_and_a_folder_name_every_page_below_them(
    tmp_path: Path, line: str, found: str
) -> None:
    pages = (
        "http://example.org",
        "https://Example.org/x/?q=https://b.example/x/y/",
        "https://example.org/x/y/z#top",
        "https://example.org/x/*",
        "https://example.org.evil.example/x/",
        "https://a.example.org/",
        "https://a.example.org:8443/x/",
        "https://notexample.org/x/",
    )
    wanted = {page: bit == "1" for page, bit in zip(pages, found, strict=True)}
    requests = asked(tmp_path / "requests.txt", f"sha256:{'0' * 64}", line)
    assert {page: bool(requests.keys(page, NOBODY)) for page in pages} == wanted
    assert requests.keys("", NOBODY) == [] == requests.keys("no address", NOBODY)


@pytest.mark.parametrize("line", ["org", "*", "*.org", "example.org/x", "a..b", "x@a.example"])
def test_nothing_wider_than_a_domain_is_a_request(tmp_path: Path, line: str) -> None:
    (tmp_path / "requests.txt").write_text(line)
    with pytest.raises(DataError, match="is not a deletion request"):
        list(read_deletions([tmp_path / "requests.txt"]))


def test_each_request_is_told_once_and_addresses_are_not(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    lines = ["https://a.example/1", "https://a.example:443/1", "https://b.example/who", "a" * 32]
    path.write_text("\n".join(lines))
    key, other = sha256("https://a.example/1"), sha256("https://b.example/who")
    rows = list(request_rows(read_deletions([path]), {key: 2}, {"a" * 32: 1}))
    assert [(row["line"], row["withdrawn"], row["out_before"]) for row in rows] == [
        (1, 2, 0), (2, 2, 0), (3, 0, 0), (4, 0, 1),
    ]  # fmt: skip
    told = outcomes(rows)
    assert told == {
        "asked": 4,
        "withdrew": 2,
        "out_before": 1,
        "unmatched": 1,
        "first_unmatched": [{"list": "requests.txt", "line": 3, "key": other}],
    }
    said = unmatched_text(told)
    assert said == ("1 of 4 deletion requests match no input record: requests.txt line 3")
    assert "who" not in f"{rows}{told}{said}"
    assert unmatched_text(outcomes(rows[:2])) == ""


def test_many_unmatched_requests_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_text("".join(f"{n:032x}\n" for n in range(5000)))
    told = outcomes(request_rows(read_deletions([path]), {}, {}))
    assert (told["unmatched"], len(told["first_unmatched"])) == (5000, 100)
    assert unmatched_text(told).endswith("requests.txt line 10, and 4990 more")


def test_a_line_counts_as_an_editor_counts(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_bytes(
        b"https://a.example/\x0b\x1c\r\n\r\nhttps://a.example/\xe2\x80\xa8x\r\n" + b"b" * 32
    )
    assert [request.line for request in read_deletions([path])] == [1, 3, 4]


@pytest.mark.parametrize(
    "line", ["John Doe", "ftp", "sha256:12", "x" * 10_000, "\x1b[31m", "https:/one.slash"]
)
def test_a_line_that_is_no_request_is_told_and_not_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.txt"
    path.write_text(f"https://good.example/\n{line}\n")
    with pytest.raises(DataError, match=r"is not a deletion request .*line 2") as error:
        list(read_deletions([path]))
    assert line not in str(error.value).replace(str(path), "")


def test_a_request_with_a_fragment_holds_after_a_hash_of_the_same_address(tmp_path: Path) -> None:
    address = "https://a.example/page#part"
    lines = (f"sha256:{sha256(address)}", address, address)
    for order in (lines, lines[::-1]):
        found = asked(tmp_path / "requests.txt", *order)
        assert found.keys("https://a.example/page", NOBODY) == [sha256(address)]
        assert found.keys(address, NOBODY) == [sha256(address)]
        assert found.rule(sha256(address)) == "requests.txt, line 1"
