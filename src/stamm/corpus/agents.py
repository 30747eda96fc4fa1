"""The crawler names that a website is asked about: whose refusal keeps a page out.

A list is data with a source and a date, not a constant of nature: names appear and vanish, and a
run records the list it used in its configuration.
"""

from __future__ import annotations

APERTUS_AGENTS: tuple[str, ...] = (
    "AI2Bot",
    "Applebot-Extended",
    "Bytespider",
    "CCBot",
    "CCBot/2.0",
    "CCBot/1.0",
    "ClaudeBot",
    "cohere-training-data-crawler",
    "Diffbot",
    "Meta-ExternalAgent",
    "Google-Extended",
    "GPTBot",
    "PanguBot",
    "*",
    "FacebookBot",
)
"""The agents of the Apertus corpus, asked in January 2025.

Source   Apertus technical report (arXiv 2509.14233), section on robots.txt; FacebookBot stands
         only in the code, swiss-ai/pretrain-data. `*` asks what a crawler without a name may do.
"""
