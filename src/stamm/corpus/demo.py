"""The names of the texts shipped with stamm, ready for a configuration.

What they are, where they come from and under which licence: demo_data/LICENSES.md.
"""

from __future__ import annotations

DEMO_INPUTS: tuple[str, ...] = (
    "package:guides.jsonl.zst",
    "package:manuals.jsonl.zst",
    "package:rights.jsonl.zst",
    "package:public.jsonl.zst",
    "package:novels.jsonl.zst",
    "package:pages.warc.gz",
)
DEMO_ROBOTS: tuple[str, ...] = ("package:robots.jsonl.zst",)
DEMO_PROBE_BOOKS = "package:probe_books.jsonl.zst"
