"""The rules of one robots.txt file, against RFC 9309 and the usage of sites."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from stamm.corpus.consent import robots as rules_module
from stamm.corpus.consent.agents import APERTUS_AGENTS
from stamm.corpus.consent.robots import RobotsFile, is_robots_path, reserves_training
from stamm.corpus.consent.robots_matcher import (
    LongestMatch,
    RankedRule,
    longest_match,
    normalize_path,
    path_of,
)
from stamm.corpus.consent.robots_parser import (
    PARSED_BYTES,
    agent_token,
    read_groups,
    read_lines,
    whole_lines,
)

SITE = "https://example.org"


@pytest.mark.parametrize(
    ("text", "path", "agent", "allowed"),
    [
        ("User-agent: *\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: *\nDisallow:", "/a", "GPTBot", True),
        ("", "/a", "GPTBot", True),
        ("User-agent: gptbot\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: CCBot\nDisallow: /", "/a", "GPTBot", True),
        ("User-agent: CCBot\nDisallow: /", "/a", "CCBot/2.0", False),
        # An own group shields from the one for everybody.
        ("User-agent: *\nDisallow: /\n\nUser-agent: GPTBot\nAllow: /", "/a", "GPTBot", True),
        # A group is named by its product token, an agent follows the group of the same token.
        ("User-agent: GPTBot/1.0\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: GPTBot (ai)\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: CCBot/3.0\nDisallow: /", "/a", "CCBot/2.0", False),
        ("User-agent: * foo\nDisallow: /", "/a", "GPTBot", False),
        ("User-agent: *foo\nDisallow: /", "/a", "GPTBot", True),
        ("User-agent: Kangaroo Bot\nDisallow: /", "/a", "Kangaroo", False),
        ("User-agent: B\nDisallow: /", "/a", "Bytespider", True),
        ("User-agent: b\nDisallow: /", "/a", "B", False),
        ("User-agent: *\nDisallow: /\n\nUser-agent: b\nAllow: /", "/a", "B", True),
        ("User-agent: *\nAllow: /\n\nUser-agent: b\nDisallow: /", "/a", "B", False),
        ("User-agent: AI\nDisallow: /", "/a", "AI2Bot", True),
        ("User-agent: AI2Bot\nDisallow: /", "/a", "AI2Bot", False),
        # The longest match wins, Allow wins a tie.
        ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", "x", True),
        ("User-agent: *\nAllow: /a\nDisallow: /a/b", "/a/b/c", "x", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", "x", True),
        # Wildcards and the end mark.
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", "x", False),
        ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?z", "x", True),
        ("User-agent: *\nDisallow: /a/*/c", "/a/b/c/d", "x", False),
        ("User-agent: *\nDisallow: /a/*/c", "/a/c", "x", True),
        ("User-agent: *\nDisallow: /end$", "/end/more", "x", True),
        # Percent-encoding compares equal in both spellings.
        ("User-agent: *\nDisallow: /caf%C3%A9", "/café", "x", False),
        ("User-agent: *\nDisallow: /café", "/caf%c3%a9", "x", False),
        ("User-agent: *\nDisallow: /a%3Cd", "/a%3cd", "x", False),
        # Groups of one name are merged, and one group may have several names.
        ("User-agent: x\nDisallow: /a\n\nUser-agent: x\nDisallow: /b", "/b", "x", False),
        ("User-agent: x\nDisallow: /a\n\nUser-agent: x\nDisallow: /b", "/a", "x", False),
        ("User-agent: x\nUser-agent: y\nDisallow: /a", "/a", "x", False),
        # Comments, case of keys, carriage returns.
        ("# hi\r\nUSER-AGENT: *  # all\r\ndisallow: /a # no\r\n", "/a", "x", False),
        ("\ufeffUser-agent: *\nDisallow: /", "/a", "x", False),
        ("User-agent: *\nDisallow: /", "/robots.txt", "x", True),
    ],
)
def test_rules(text: str, path: str, agent: str, allowed: bool) -> None:
    assert (RobotsFile(text).refusal(SITE + path, (agent,)) is None) is allowed


def test_refusal_names_the_deciding_line_and_its_group() -> None:
    text = "User-agent: *\nDisallow: /a\nDisallow: /a/b\nAllow: /c\n"
    refusal = RobotsFile(text).refusal(f"{SITE}/a/b/c", ("*",))
    assert refusal is not None
    assert refusal.rule == "Disallow: /a/b (group *)"
    assert refusal.reason == "robots_disallow"
    assert refusal.line == 3


def test_agents_without_a_group_of_their_own_are_not_listed_beside_the_star() -> None:
    text = "User-agent: ccbot\nDisallow: /\nUser-agent: *\nDisallow: /\n"
    refusal = RobotsFile(text).refusal(f"{SITE}/a", APERTUS_AGENTS)
    assert refusal is not None
    assert refusal.agents == "CCBot, CCBot/2.0, CCBot/1.0, *"


def test_one_refused_agent_is_enough() -> None:
    refusal = RobotsFile("User-agent: GPTBot\nDisallow: /").refusal(f"{SITE}/a", APERTUS_AGENTS)
    assert refusal is not None
    assert refusal.agents == "GPTBot"


def test_misspelt_rule_is_refused_and_quoted() -> None:
    refusal = RobotsFile("User-agent: *\nDissallow: /a").refusal(f"{SITE}/a", ("*",))
    assert refusal is not None
    assert refusal.rule == "Disallow: /a (group *)"


def test_rules_behind_500_kib_do_not_count() -> None:
    filler = "# " + "x" * 98 + "\n"
    late = filler * (PARSED_BYTES // 100 + 1) + "User-agent: *\nDisallow: /\n"
    early = "User-agent: *\nDisallow: /\n" + filler * (PARSED_BYTES // 100 + 1)
    assert RobotsFile(late).refusal(f"{SITE}/a", ("*",)) is None
    assert RobotsFile(early).refusal(f"{SITE}/a", ("*",)) is not None


@pytest.mark.parametrize(
    ("text", "path", "refused"),
    [
        ("User-agent: *\nContent-Usage: / train-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: train-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: /\ttrain-ai=n", "/a", True),
        ("User-agent: *\nContent-Usage: /", "/a", False),
        ("User-agent: *\nContent-Usage: /b train-ai=n", "/a", False),
        ("User-agent: *\nContent-Usage: / train-ai=n\nContent-Usage: /a train-ai=y", "/a", False),
        ("User-agent: *\nContent-Usage: / search=n", "/a", False),
        ("User-agent: Other\nContent-Usage: / train-ai=n", "/a", False),
        ("User-agent: *\nContent-Signal: search=yes,ai-train=no\nAllow: /", "/a", True),
        ("User-agent: *\ncontent-signal: ai-train = NO", "/a", True),
        ("User-agent: *\nContent-Signal: ai-train=yes, search=no, ai-input=no", "/a", False),
        ("User-agent: Other\nContent-Signal: ai-train=no", "/a", False),
        ("Content-Signal: ai-train=no, search=yes\n\nUser-agent: *\nAllow: /", "/a", True),
        ("# a comment\nContent-Signal: ai-train=no", "/a", True),
        ("Content-Signal: ai-train=yes\nUser-agent: Other\nDisallow: /", "/a", False),
        ("Content-Signal: ai-train=no", "/robots.txt", False),
    ],
)
def test_content_usage_lines(text: str, path: str, refused: bool) -> None:
    refusal = RobotsFile(text).refusal(SITE + path, ("GPTBot",))
    assert (refusal is not None) is refused
    if refusal is not None:
        assert refusal.reason == "robots_content_usage"


def test_content_usage_value() -> None:
    assert reserves_training("train-ai=n, search=y")
    assert reserves_training("search=y, Train-AI = n;x=1")
    assert not reserves_training("train-ai=y")
    assert not reserves_training("do-train-ai=n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<html><body>Not found</body></html>", "an HTML page"),
        ("\ufeff \r\n <!DOCTYPE html>\nDisallow: /", "an HTML page"),
        ("\x1f\ufffd\x08\0\0", "binary data"),
        ("U\0s\0e\0r\0-\0a\0g\0e\0n\0t\0:\0*\0", "binary data"),
        ("", ""),
        ("Not found", ""),
        ("# <html>\n\f\x1a", ""),
        # A file that names an agent says something, whatever stands around it.
        ("<pre>\nUser-agent: *\nDisallow: /\n</pre>", ""),
        ("\0\nUser-agent: *\nDisallow: /", ""),
    ],
)
def test_what_is_no_robots_file(text: str, found: str) -> None:
    file = RobotsFile(text)
    assert file.unparsable == found
    assert (file.refusal(f"{SITE}/", ("*",)) is None) is ("User-agent" not in text)


def test_robots_path() -> None:
    assert is_robots_path("https://a.b/robots.txt")
    assert not is_robots_path("https://a.b/x/robots.txt")
    assert not is_robots_path("http://[broken/robots.txt")


def test_a_name_is_looked_up_by_its_product_token() -> None:
    assert [agent_token(a) for a in ("CCBot/2.0", " AI2Bot ", "*", "a_b-c")] == [
        "ccbot",
        "ai2bot",
        "*",
        "a_b-c",
    ]
    wrong = ("", "Foo Bar", "**", "/1", "GPTBot (ai)", "a\u00a0b", "b\udcfccher", "b\ufffdcher")
    assert [agent_token(agent) for agent in wrong] == [""] * len(wrong)


@pytest.mark.parametrize(
    ("written", "agent", "meant"),
    [
        ("Bücherbot", "Bücherbot", True),
        ("BücherBot/2.0 (ai)", "bücherbot/1.0", True),
        ("ébot", "ébot", True),
        ("爬虫", "爬虫", True),
        ("爬虫 # all of them", "爬虫", True),
        ("Бот_1-x", "Бот_1-x", True),
        ("Bücherbot\u3000x", "Bücherbot", True),
        # Only the capital letters of ASCII are folded, and nothing is normalised.
        ("BÜcherBOT", "bÜcherbot", True),
        ("BÜCHERBOT", "bücherbot", False),
        ("Bu\u0308cherbot", "Bücherbot", False),
        ("Bu\u0308cherbot", "Bu\u0308cherbot", True),
        # The start that Google's parser reads is another name, which is still meant.
        ("Bücherbot", "B", True),
        ("B", "Bücherbot", False),
        ("Bücher", "Bücherbot", False),
        ("Bücherbot", "Bücher", False),
    ],
)
def test_a_name_outside_ascii_is_compared_by_its_octets(
    written: str, agent: str, meant: bool
) -> None:
    text = f"User-agent: {written}\nDisallow: /\n"
    for form in (text, text.encode(), "\ufeff" + text, text.replace("\n", "\r\n")):
        refusal = RobotsFile(form).refusal(f"{SITE}/a", (agent,))
        assert (refusal is not None) is meant
    # Its own group shields it from the one for everybody, as with any other name.
    own = f"User-agent: *\nDisallow: /\n\nUser-agent: {written}\nAllow: /\n"
    assert (RobotsFile(own).refusal(f"{SITE}/a", (agent,)) is None) is meant


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16-le", "cp1251", "gb18030"])
def test_names_in_another_encoding_harm_nothing(encoding: str) -> None:
    name = {"cp1251": "Бот", "gb18030": "爬虫"}.get(encoding, "Bücherbot")
    octets = (
        b"User-agent: " + name.encode(encoding) + b"\nDisallow: /a\nUser-agent: *\nDisallow: /b"
    )
    file = RobotsFile(octets)
    for agent in (name, "*", "GPTBot"):
        assert file.refusal(f"{SITE}/a", (agent,)) is None
        assert file.refusal(f"{SITE}/b", (agent,)) is not None


def test_lone_surrogates_and_other_odd_text_are_read() -> None:
    file = RobotsFile("User-agent: *\nDisallow: /\ud800\nDisallow: /\U0001f600$")
    assert file.refusal(f"{SITE}/\ud800/a", ("*",)) is not None
    assert file.refusal(f"{SITE}/%F0%9F%98%80", ("*",)) is not None
    assert file.refusal(f"{SITE}/%F0%9F%98%80a", ("*",)) is None


def naive(pattern: bytes, path: bytes) -> bool:
    """RFC 9309, 2.2.3, octet by octet: where in the path a beginning of the pattern can end."""
    ends = {0}
    for at, octet in enumerate(pattern):
        if octet == ord("*"):
            ends = set(range(min(ends), len(path) + 1))
        elif octet == ord("$") and at == len(pattern) - 1:
            return len(path) in ends
        else:
            ends = {end + 1 for end in ends if path[end : end + 1] == bytes([octet])}
        if not ends:
            return False
    return True


def test_the_longest_of_many_patterns_decides() -> None:
    rng = random.Random(3)
    decided = 0
    for _ in range(2000):
        patterns = [
            b"/" + bytes(rng.choices(b"ab*$", weights=(4, 4, 2, 1), k=rng.randrange(6)))
            for _ in range(rng.randrange(12))
        ]
        candidates = [
            RankedRule(-len(pattern), rng.random() < 0.5, (line, "", pattern))
            for line, pattern in enumerate(patterns)
        ]
        matcher = LongestMatch(zip(patterns, candidates, strict=True))
        for _ in range(5):
            path = b"/" + bytes(rng.choices(b"ab$", weights=(5, 5, 1), k=rng.randrange(8)))
            fitting = [c for c in candidates if naive(c.rule[2], path)]
            expected = min(fitting, default=None)
            assert matcher.find(path) == expected, (patterns, path)
            assert longest_match(zip(patterns, candidates, strict=True), path) == expected
            decided += expected is not None
    assert decided > 4000


class CountingPath(bytes):
    """A path that counts how often it is searched."""

    searched = 0

    def find(self, *arguments: object) -> int:  # type: ignore[override]
        self.searched += 1
        return super().find(*arguments)  # type: ignore[arg-type]


def test_a_pattern_of_stars_is_searched_once_a_piece() -> None:
    pattern = b"/" + b"*a" * 5000 + b"*b"
    matcher = LongestMatch([(pattern, RankedRule(-len(pattern), True, (1, "disallow", b"")))])
    path = CountingPath(b"/" + b"a" * 4000)
    assert matcher.find(path) is None
    assert path.searched == 4001
    assert matcher.find(CountingPath(b"/" + b"a" * 5000 + b"b")) is not None


def test_many_names_above_many_rules_share_them() -> None:
    names, rules = 15_000, 15_000
    text = "User-agent: n{}\n" * names
    lines = read_lines((text.format(*range(names)) + "Disallow: /\n" * rules).encode())
    groups = read_groups(lines)
    assert len(groups) == names + 1  # each is also known by its letters
    assert len({block for blocks in groups.values() for block in blocks}) == 1


def test_single_questions_build_no_search_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    class Counting(LongestMatch):
        def __init__(self, patterns: Iterable[tuple[bytes, RankedRule]]) -> None:
            listed = list(patterns)
            built.append(len(listed))
            super().__init__(listed)

    monkeypatch.setattr(rules_module, "LongestMatch", Counting)
    text = "User-agent: *\n" + "".join(f"Disallow: /{n}/*/a$\n" for n in range(100))
    for n in range(5):
        assert RobotsFile(text).refusal(f"{SITE}/{n}/x/a", APERTUS_AGENTS) is not None
    assert built == []
    # One that is asked often is built once, whoever asks.
    file = RobotsFile(text)
    for n in range(50):
        for agents in (APERTUS_AGENTS, ("GPTBot",), ("*",)):
            refusal = file.refusal(f"{SITE}/{n}/x/a", agents)
            assert refusal is not None and refusal.line == n + 2
    assert built == [100]


def test_a_path_is_decided_alike_by_lines_and_by_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(9)
    values = (
        "/", "/a", "/ab/*", "/a*b$", "/*.x", "*a", "", "/$", "/i", "/index.html", "/a/index.htm", "//index.html",
        "/%61", "/%2Fa", "/é", "/a b", "/a#b", "/#", "http://x/a", "/a$b", "a", "/~b", "/%7Eb",
    )  # fmt: skip
    paths = (
        "/",
        "/a",
        "/ab/",
        "/a/",
        "/axb",
        "/a.x",
        "//",
        "/i",
        "/index.html",
        "/%2Fa",
        "/%C3%A9",
        "/a%20b",
        "/~b",
    )
    decided = 0
    for _ in range(300):
        lines = [
            f"{rng.choice(['Disallow: ', 'Disallow:', 'disallow: ', 'Allow: ', ' Disallow: '])}"
            f"{rng.choice(values)}{rng.choice(['', '', ' # x'])}"
            for _ in range(rng.randrange(12))
        ]
        text = "\n".join(["User-agent: *", *lines])
        monkeypatch.setattr(rules_module, "_ONE_BY_ONE", len(paths))
        by_lines = RobotsFile(text)
        found = [by_lines.refusal(SITE + path, ("*",)) for path in paths]
        monkeypatch.setattr(rules_module, "_ONE_BY_ONE", 0)
        by_structure = RobotsFile(text)
        assert found == [by_structure.refusal(SITE + path, ("*",)) for path in paths], text
        decided += len(found) - found.count(None)
    assert decided > 1000


def test_the_line_of_a_rule_is_counted_with_every_line_end() -> None:
    for end in ("\n", "\r", "\r\n"):
        text = (
            f"# a{end}{end}User-agent: x{end}User-agent: y{end}{end}Disallow: /a{end}Allow: /b{end}"
        )
        text += f"User-agent: z{end}#{end}Disallow: /c\0{end}Disallow: /d"
        for agent, path, line in (("x", "/a", 6), ("y", "/a", 6), ("z", "/c", 10), ("z", "/d", 11)):
            refusal = RobotsFile(text).refusal(SITE + path, (agent,))
            assert refusal is not None and refusal.line == line, (end, agent)


def test_rules_written_as_absolute_urls_are_found_and_not_followed() -> None:
    text = (
        "User-agent: *\nDisallow: https://example.org/private/\n"
        "Allow: HTTP://www.EXAMPLE.org/a # yes\nDisallow: https://other.org/b\n"
        "Disallow: https://example.org:8443/c\nDisallow: https://[broken/\nDisallow: /d\n"
        "Sitemap: https://example.org/map.xml\nUser-agent: CCBot\nDisallow: https://example.org/e\n"
    )
    file = RobotsFile(text)
    assert file.refusal(f"{SITE}/private/", ("*", "CCBot")) is None
    assert file.absolute_rules("example.org") == [
        (2, "disallow", b"https://example.org/private/"),
        (3, "allow", b"HTTP://www.EXAMPLE.org/a"),
        (10, "disallow", b"https://example.org/e"),
    ]
    lines = {
        agents: [line for line, _, _ in file.absolute_rules("www.example.org", agents)]
        for agents in (("*",), ("CCBot",), ("GPTBot", "CCBot"))
    }
    assert lines == {("*",): [2, 3], ("CCBot",): [10], ("GPTBot", "CCBot"): [2, 3, 10]}
    assert [rule[0] for rule in file.absolute_rules("other.org", ("*",))] == [4]
    assert RobotsFile("Disallow: https://example.org/").absolute_rules("example.org") == []


def test_hostile_files_end() -> None:
    path = f"{SITE}/{'a' * 4000}"
    bodies = (
        "Disallow: /" + "*a" * 8000 + "b\n",
        "Disallow: /*aaaaaaaaaaaaaaaaaaaab\n",
        "Disallow: /" + "a" * 1000 + "\n",
        "User-agent: x\nDisallow: /b\n",
    )
    for body in bodies:
        text = "User-agent: *\n" + body * (PARSED_BYTES // len(body))
        expected = "a" * 1000 + "\n" in body
        assert (RobotsFile(text).refusal(path, APERTUS_AGENTS) is not None) is expected


def test_an_address_in_one_spelling() -> None:
    assert path_of("https://a.org/%7ejoe/*?x=$#f") == "/%7ejoe/*?x=$"
    assert normalize_path(b"/%7ejoe/*?x=$") == b"/~joe/%2A?x=%24"
    assert normalize_path(b"/%2f%zz%") == b"/%2F%zz%"
    assert normalize_path("/é".encode()) == b"/%C3%A9"


@pytest.mark.parametrize(
    ("pattern", "path", "same"),
    [
        # What no address may hold as it is stands percent-encoded there (RFC 3986, 2).
        ("/my docs/", "/my%20docs/a", True),
        ("/my%20docs/", "/my docs/a", True),
        ("/{id}", "/%7bid%7D", True),
        ('/"a"|b\\^`<c>', "/%22a%22%7Cb%5C%5E%60%3Cc%3E", True),
        ("/a b$", "/a%20b", True),
        ("/a\tb", "/a%09b", True),
        # Reserved signs are another thing encoded than plain.
        ("/a%2Fb", "/a/b", False),
        ("/a/b", "/a%2Fb", False),
        ("/a%3Fb", "/a?b", False),
        ("/%25", "/%", False),
        ("/a%2541", "/aA", False),
        ("/%fF", "/%Ff", True),
        ("/%78", "/x", True),
        ("/%zz", "/%zz", True),
        ("/%", "/%", True),
        # Who fetches /x/../a asks the server for /a (RFC 3986, 5.2.4).
        ("/a", "/x/../a", True),
        ("/a", "/./a", True),
        ("/a", "/%2e%2E/x/%2e./a", True),
        ("/a", "/../../a/b", True),
        ("/x/$", "/x/a/..", True),
        ("/x/$", "/x/.", True),
        ("/x", "/x/../a", False),
        ("/a", "/b?/../a", False),
        ("/.well-known/", "/.well-known/a", True),
        ("/...", "/.../a", True),
    ],
)
def test_one_thing_under_several_spellings(pattern: str, path: str, same: bool) -> None:
    file = RobotsFile(f"User-agent: *\nDisallow: {pattern}\n")
    assert (file.refusal(SITE + path, ("*",)) is not None) is same


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_rule_cut_at_500_kib_is_none(end: str, as_bytes: bool) -> None:
    def refused(cut_at: int, rule: str) -> bool:
        head = f"User-agent: *{end}Disallow: /p{end}"
        fill = "#" * (PARSED_BYTES - len(head) - len(end) - cut_at)
        text = f"{head}{fill}{end}{rule}{end}# more"
        file = RobotsFile(text.encode() if as_bytes else text)
        return file.refusal(f"{SITE}/public/a", ("*",)) is not None

    # "Allow: /public/b" that is cut to "Allow: /p" would allow what another line refuses.
    assert refused(len("Allow: /p"), "Allow: /public/b")
    assert refused(len("Allow: /public/"), "Allow: /public/b")
    # A rule that ends with the 500 KiB is whole.
    assert not refused(len("Allow: /public/"), "Allow: /public/")
    assert not refused(len("Allow: /public/") + 3, "Allow: /public/")


def test_whole_lines_of_what_has_none() -> None:
    assert whole_lines(b"x" * (PARSED_BYTES + 5)) == b"x" * PARSED_BYTES
    assert whole_lines(b"a\n" + b"x" * PARSED_BYTES) == b"a\n"
    whole = b"x" * (PARSED_BYTES - 1) + b"\n"
    assert whole_lines(whole) == whole
    assert whole_lines(whole + b"y") == whole
    assert whole_lines(b"x" * PARSED_BYTES + b"\ny") == b"x" * PARSED_BYTES
