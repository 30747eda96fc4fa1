"""ai.txt in Spawning's format: which texts are refused, and that files of other formats are ignored."""

from __future__ import annotations

import pytest

from stamm.corpus.consent.agents import APERTUS_AGENTS
from stamm.corpus.consent.ai_txt import TEXT_TYPES, AiTxtFile

SITE = "https://example.org"
ALL = ("*",)
# What the generator wrote for a site that refuses everything, and for one that refuses images.
NOTHING = "# Spawning AI\n# Prevent datasets from using the following file types\n\nUser-Agent: *\n"
TEXT = NOTHING + "".join(f"Disallow: *.{ending}\n" for ending in TEXT_TYPES)
IMAGES = NOTHING + "Disallow: *.jpg\nDisallow: *.png\n"


@pytest.mark.parametrize(
    ("text", "url", "state", "rule"),
    [
        (NOTHING + "Disallow: /\nDisallow: *\n", "/a", "reserved", "Disallow: /"),
        (TEXT, "/a.txt", "reserved", "Disallow: *.txt"),
        (TEXT, "/A.PDF", "reserved", "Disallow: *.pdf"),
        (TEXT, "/article", "reserved", "Disallow: *.html"),
        (TEXT, "/", "reserved", "Disallow: *.html"),
        (TEXT, "/index.php?id=4", "reserved", "Disallow: *.html"),
        (TEXT, "/wiki/Version_1.5", "reserved", "Disallow: *.html"),
        (IMAGES, "/article", "silent", ""),
        (IMAGES, "/a.jpg", "reserved", "Disallow: *.jpg"),
        # Text is allowed, everything else is not: the longer rule holds.
        (NOTHING + "Allow: *.txt\nDisallow: /\n", "/article", "not_reserved", "Allow: *.txt"),
        (NOTHING + "Disallow: *.txt\nAllow: /\n", "/article", "reserved", "Disallow: *.txt"),
        (NOTHING + "Disallow: *.txt\nAllow: /open/\n", "/open/x", "not_reserved", "Allow: /open/"),
        (NOTHING + "Disallow: *.pdf\n", "/article", "silent", ""),
        (NOTHING + "Disallow: *.txt\n", "/a.pdf", "silent", ""),
        (NOTHING + "Disallow: /a\nAllow: /a\n", "/a", "not_reserved", "Allow: /a"),
        (NOTHING + "Disallow:\n", "/a", "silent", ""),
        (
            NOTHING + "Disallow: private/ # not this\n",
            "/private/x",
            "reserved",
            "Disallow: private/",
        ),
        ("\ufeffuser-agent:*\r\ndisallow:/\r\n", "/a", "reserved", "Disallow: /"),
    ],
)
def test_addresses(text: str, url: str, state: str, rule: str) -> None:
    answer = AiTxtFile(text).answer(SITE + url, ALL)
    assert (answer.state, answer.rule) == (state, rule)


@pytest.mark.parametrize(("text", "state"), [(TEXT, "reserved"), (IMAGES, "silent")])
def test_text_in_general(text: str, state: str) -> None:
    assert AiTxtFile(text).answer("https://site.example/", ALL).state == state


def test_one_agent_refused_is_enough() -> None:
    text = "User-Agent: GPTBot\nUser-Agent: ClaudeBot\nDisallow: /\n\nUser-Agent: *\nAllow: /\n"
    answer = AiTxtFile(text).answer(f"{SITE}/a", ("CCBot", "GPTBot"))
    assert (answer.state, answer.agent) == ("reserved", "GPTBot")
    assert AiTxtFile(text).answer(f"{SITE}/a", APERTUS_AGENTS).state == "reserved"
    assert AiTxtFile(text).answer(f"{SITE}/a", ("CCBot",)).state == "not_reserved"
    assert AiTxtFile(text).answer(f"{SITE}/a", ("ClaudeBot/2.0",)).state == "reserved"


def test_groups_of_one_name_are_merged() -> None:
    text = "User-Agent: x\nDisallow: /a\n\nUser-Agent: X\nUser-Agent: y\nDisallow: /b\n"
    file = AiTxtFile(text)
    assert [file.answer(f"{SITE}/{path}", ("x",)).state for path in "abc"] == [
        "reserved",
        "reserved",
        "silent",
    ]
    assert [file.answer(f"{SITE}/{path}", ("y",)).state for path in "ab"] == ["silent", "reserved"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!doctype html><title>ai.txt</title>",
        "# ai.txt\n\n> A site about cats.\n\n- [Cats](/cats)\n",
        "Spec-Version: 1.0\nSite-Name: x\nTraining: Deny\nAgent: *\n",
        "User-agent: *\nSpawning: disallow\n",
        "Disallow: /\nDisallow: *\n",
        "User-agent: *\nAllow-Training: /\n",
        "\x00\x01\x02" * 1000,
    ],
)
def test_files_of_other_formats_are_ignored(text: str) -> None:
    assert AiTxtFile(text).answer(f"{SITE}/a", ALL).state == "silent"


def test_a_hostile_file_is_bounded() -> None:
    line = "Disallow: /" + "*a" * 900 + "b$\n"
    file = AiTxtFile(NOTHING + line * 300 + "Disallow: /\x1b[31mred\n")
    assert file.answer(f"{SITE}/{'a' * 2000}", ALL).state == "silent"
    many = AiTxtFile(NOTHING + "Disallow: /x\n" * 50_000 + "Disallow: /y\n")
    assert many.answer(f"{SITE}/y", ALL).state == "silent"
    # As many names as rules: each name may not have a copy of the rules.
    crowd = "".join(f"User-agent: a{number}\n" for number in range(15_000))
    crowded = AiTxtFile(crowd + "Disallow: /x\n" * 9999)
    assert crowded.answer(f"{SITE}/x", ("a77-bot", "a77")).state == "reserved"
    written = AiTxtFile(NOTHING + "Disallow: /\x1b[31m\n").answer(f"{SITE}/%1B[31m", ALL)
    assert "\x1b" not in written.rule
