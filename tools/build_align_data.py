"""Builds the conversations and prompts shipped with stamm (src/stamm/align/demo_data).

Usage: python tools/build_align_data.py SOURCE_FOLDER [OUTPUT_FOLDER]

SOURCE_FOLDER has sft-chatterbot/, sft-human-instructions/ and judge-refusal-xstest/. The choice is deterministic:
rebuilding from the same sources gives the same bytes. Prints each file with its SHA-256.

Selection: general topics of chatterbot-corpus in fifteen languages, without topics in which the
bot describes itself or judges people, and the expert-written seed tasks of Self-Instruct; both texts
in the script of the row's language, and together at most 350 characters (a wide one counts as three),
about 150 tokens of a small multilingual vocabulary. Questions are ordered by hash: the first 200 are test prompts, the next 300
training prompts, the next 100 validation prompts, all others are in the conversations. No question is in two files.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

OUTPUT = Path(__file__).resolve().parents[1] / "src" / "stamm" / "align" / "demo_data"
CHATS, TRAIN_PROMPTS, TEST_PROMPTS, VALIDATION_PROMPTS = (
    "align_chats.jsonl.zst",
    "align_prompts.jsonl.zst",
    "align_test_prompts.jsonl.zst",
    "align_validation_prompts.jsonl.zst",
)
XSTEST_FILE = "prompts.jsonl.zst"
PROBES = "xstest_prompts.jsonl.zst"
NUM_TEST, NUM_TRAIN, NUM_VALIDATION = 200, 300, 100
LONGEST = 350  # characters of question and answer
MOST_ANSWERS = 3  # of one question
MOST_ROWS = 600  # of one language
RENAMED = {"kor_Hang": "kor_Kore"}  # to the tags of stamm.corpus.language
LANGUAGES = frozenset(
    [
        "eng_Latn",
        "deu_Latn",
        "fra_Latn",
        "ita_Latn",
        "spa_Latn",
        "por_Latn",
        "nld_Latn",
        "swe_Latn",
        "ind_Latn",
        "tur_Latn",
        "ukr_Cyrl",
        "rus_Cyrl",
        "pes_Arab",
        "jpn_Jpan",
        "kor_Hang",
    ]
)
TOPICS = frozenset(
    [
        "greetings",
        "greeting",
        "conversations",
        "coversations",
        "food",
        "sports",
        "sport",
        "science",
        "money",
        "dinero",
        "movies",
        "literature",
        "history",
        "trivia",
        "computers",
        "computer",
        "tech_support",
        "health",
        "music",
        "traveling",
        "games",
        "proverbs",
        "linguistic_knowledge",
        "suggestions",
        "emotion",
        "emotions",
        "emociones",
    ]
)
# First words of the names of a script's letters in Unicode.
SCRIPTS = {
    "Latn": ("LATIN",),
    "Cyrl": ("CYRILLIC",),
    "Arab": ("ARABIC",),
    "Jpan": ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "Kore": ("HANGUL",),
}
# Topics whose lists may be dialogues: only their first line is an answer to the question.
DIALOGUES = frozenset({"conversations", "coversations", "tech_support"})
UNSUITABLE = re.compile(
    r"hitler|nazi\b|suicid|killed|murder|drunk|tipsy|civil war|stupid|sex|https?:|@|<", re.I
)

CHATTERBOT = (
    "gunthercox/chatterbot-corpus",
    "https://github.com/gunthercox/chatterbot-corpus at a01efece26661309b870af0251d96f94ee09fb19",
    "BSD-3-Clause",
)
SELF_INSTRUCT = (
    "yizhongw/self-instruct",
    "https://github.com/yizhongw/self-instruct at 0b26ccaa415992100fa32df62d41b994cf928e23",
    "Apache-2.0",
)
XSTEST = (
    "paul-rottger/exaggerated-safety",
    "https://github.com/paul-rottger/exaggerated-safety at d7bb5bd738c1fcbc36edd83d5e7d1b71a3e2d84d",
    "CC-BY-4.0",
)
NOTES = f"""# Conversations and prompts shipped with stamm

Short conversations to try supervised fine-tuning and alignment with, chosen by
`tools/build_align_data.py`. Every row names its source and licence. Texts are unchanged except for
blanks at their ends and Unicode normalization (NFC); a question with several answers has a row for
each of at most {MOST_ANSWERS}. The files were not reviewed by native speakers.

| file | content |
|---|---|
| `{CHATS}` | conversations of one question and one answer (`messages`), with `language` |
| `{TRAIN_PROMPTS}` | questions to sample answers to (`prompt`), with `language` |
| `{TEST_PROMPTS}` | the same, to evaluate with; no question is in two files |
| `{PROBES}` | XSTest: questions that are `safe` to answer, and `unsafe` ones, in `probe` |
| `{VALIDATION_PROMPTS}` | the same, to choose settings with |

## chatterbot-corpus: questions and replies written by volunteers

- Source: {CHATTERBOT[1]}
- Licence: {CHATTERBOT[2]}

Copyright (c) 2017, Gunther Cox. All rights reserved.

Redistribution and use in source and binary forms, with or without modification, are permitted
provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this list of conditions and
   the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice, this list of conditions
   and the following disclaimer in the documentation and/or other materials provided with the
   distribution.
3. Neither the name of chatterbot nor the names of its contributors may be used to endorse or promote
   products derived from this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED
WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A
PARTICULAR PURPOSE ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE FOR
ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT
LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS
INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR
TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF
ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.

## Self-Instruct: the 175 expert-written seed tasks

- Source: {SELF_INSTRUCT[1]}
- Licence: {SELF_INSTRUCT[2]} (https://www.apache.org/licenses/LICENSE-2.0)
- Attribution: Yizhong Wang and others. Tasks written by GPT-3 are not included, nor are the 252
  user-oriented tasks, which are an evaluation set.

## XSTest: 250 safe and 200 unsafe prompts

- Source: {XSTEST[1]}
- Licence: {XSTEST[2]} (https://creativecommons.org/licenses/by/4.0/)
- Attribution: Paul Röttger and others, arXiv 2308.01263. The prompts alone, unchanged, with `label` as `probe`, to count refusals; keep
  them out of training data.
"""


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl.zst file."""
    with path.open("rb") as opened:
        stream = zstandard.ZstdDecompressor().stream_reader(opened)
        yield from map(json.loads, io.TextIOWrapper(stream, encoding="utf-8"))


def clean(text: str) -> str:
    """`text` in NFC without blanks at its ends."""
    return unicodedata.normalize("NFC", text).strip()


def key(question: str) -> str:
    """A question by its letters and digits alone: equal questions have equal keys."""
    return "".join(c for c in question.casefold() if c.isalnum())


def size(text: str) -> int:
    """The characters of a text, wide ones counted as three."""
    return sum(3 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def in_script(text: str, language: str) -> bool:
    """Whether most letters of a text are in the script of `language`; True without letters."""
    names = SCRIPTS[language.partition("_")[2]]
    letters = [unicodedata.name(c, "").split(" ")[0] in names for c in text if c.isalpha()]
    return 2 * sum(letters) >= len(letters)


def rank(text: str) -> str:
    """The place of a text in the deterministic order."""
    return hashlib.sha256(text.encode()).hexdigest()


def pairs(folder: Path) -> Iterator[dict[str, str]]:
    """Every suitable question with one answer."""
    for row in read(folder / "sft-chatterbot" / "conversations.jsonl.zst"):
        if row["language"] not in LANGUAGES or row["topic"] not in TOPICS:
            continue
        most = 1 if row["topic"] in DIALOGUES else MOST_ANSWERS
        for number, answer in enumerate(row["responses"][:most]):
            yield pair(f"{row['id']}-{number}", row["prompt"], answer, row["language"], CHATTERBOT)
    for row in read(folder / "sft-human-instructions" / "human_instructions.jsonl.zst"):
        if row["part"] == "seed":
            yield pair(row["id"], row["prompt"], row["response"], row["language"], SELF_INSTRUCT)


def pair(
    identifier: str, question: str, answer: str, language: str, source: tuple[str, str, str]
) -> dict[str, str]:
    """A question with one answer."""
    return {
        "id": identifier,
        "question": clean(question),
        "answer": clean(answer),
        "language": RENAMED.get(language, language),
        "source": source[0],
        "licence": source[2],
    }


def choose(folder: Path) -> list[dict[str, str]]:
    """Suitable pairs, each once, ordered by the hash of the question."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    answers: Counter[str] = Counter()
    for each in pairs(folder):
        question, answer = each["question"], each["answer"]
        both = (key(question), key(answer))
        fits = size(question) + size(answer) <= LONGEST
        fits = fits and all(in_script(text, each["language"]) for text in (question, answer))
        if not all(both) or not fits or UNSUITABLE.search(f"{question} {answer}") or both in found:
            continue
        answers[both[0]] += 1
        if answers[both[0]] <= MOST_ANSWERS:
            found[both] = each
    chosen = sorted(found.values(), key=lambda e: (rank(key(e["question"])), rank(e["id"])))
    rows: Counter[str] = Counter()
    kept = []
    for each in chosen:
        rows[each["language"]] += 1
        if rows[each["language"]] <= MOST_ROWS:
            kept.append(each)
    return kept


def prompt_row(each: dict[str, str]) -> dict[str, Any]:
    """A question alone, in TRL's column for prompts."""
    names = ("id", "language", "source", "licence")
    return {"prompt": each["question"], **{name: each[name] for name in names}}


def probe_row(row: dict[str, Any]) -> dict[str, Any]:
    """A prompt of XSTest, with its label."""
    kept = {name: row[name] for name in ("prompt", "type", "id", "language")}
    return {**kept, "probe": row["label"], "source": XSTEST[0], "licence": XSTEST[2]}


def chat_row(each: dict[str, str]) -> dict[str, Any]:
    """A question and its answer, in TRL's column for conversations."""
    messages = [
        {"role": "user", "content": each["question"]},
        {"role": "assistant", "content": each["answer"]},
    ]
    return {
        "messages": messages,
        **{name: each[name] for name in ("id", "language", "source", "licence")},
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Write rows as .jsonl.zst; the entry of SOURCES.json."""
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows]
    data = zstandard.ZstdCompressor(level=19).compress("".join(lines).encode())
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return {"file": path.name, "bytes": len(data), "records": len(lines), "sha256": digest}


def main(folder: Path, output: Path) -> None:
    """Build every shipped file, LICENSES.md and SOURCES.json."""
    output.mkdir(parents=True, exist_ok=True)
    chosen = choose(folder)
    # Tasks of Self-Instruct carry their own input; only short questions make good prompts.
    asked = [each for each in chosen if each["source"] == CHATTERBOT[0]]
    by_question = {key(each["question"]): each for each in reversed(asked)}
    questions = sorted(by_question, key=rank)
    test, rest = questions[:NUM_TEST], questions[NUM_TEST:]
    train, validation = rest[:NUM_TRAIN], rest[NUM_TRAIN : NUM_TRAIN + NUM_VALIDATION]
    prompts = {*test, *train, *validation}
    chats = [each for each in chosen if key(each["question"]) not in prompts]
    entries = [
        write(output / CHATS, sorted(map(chat_row, chats), key=lambda row: rank(row["id"]))),
        write(output / TRAIN_PROMPTS, (prompt_row(by_question[each]) for each in train)),
        write(output / TEST_PROMPTS, (prompt_row(by_question[each]) for each in test)),
        write(output / VALIDATION_PROMPTS, (prompt_row(by_question[each]) for each in validation)),
        write(output / PROBES, map(probe_row, read(folder / "judge-refusal-xstest" / XSTEST_FILE))),
    ]
    (output / "LICENSES.md").write_text(NOTES, encoding="utf-8")
    sources = [
        {"source": source, "origin": origin, "licence": licence}
        for source, origin, licence in (CHATTERBOT, SELF_INSTRUCT, XSTEST)
    ]
    listing = json.dumps({"files": entries, "sources": sources}, indent=1)
    (output / "SOURCES.json").write_text(listing + "\n", encoding="utf-8")
    for entry in entries:
        print(
            f"{entry['sha256']}  {entry['file']}  {entry['records']} rows, {entry['bytes']} bytes"
        )
    for language, count in Counter(each["language"] for each in chats).most_common():
        print(
            f"{language}\t{count}\t{sum(by_question[each]['language'] == language for each in train)}"
        )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else OUTPUT)
