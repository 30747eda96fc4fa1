"""The ledger: one row per document that came in, with what was decided, why, and on whose word."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

KEPT, DROPPED = "kept", "dropped"
PLANTED = "planted"
UNSCORED = -1.0
PII_KINDS = ("email", "ip", "iban", "card", "phone")
"""What is replaced in texts; a column pii_… of the ledger counts each."""

REASONS: dict[str, str] = {
    "robots_disallow": "robots.txt refuses at least one agent",
    "robots_content_usage": "robots.txt says Content-Usage: train-ai=n",
    "robots_unreachable": "robots.txt answered 5xx or nothing",
    "robots_unparsable": "robots.txt is no such file but a page, or binary",
    "domain_list": "the domain stands in a list of those who refused",
    "deletion_request": "somebody asked for its deletion",
    "tdmrep_unparsable": "tdmrep.json cannot be read",
    "ai_txt": "ai.txt refuses text",
    "unknown_host": "no robots.txt of the host was read",
    "no_url": "the document names no address",
    "bad_url": "the address cannot be parsed or names no host",
    "header_noai": "X-Robots-Tag reserves the page",
    "meta_noai": "a meta element reserves the page",
    "tdm_reservation": "tdm-reservation: 1 in a header or meta element",
    "content_usage": "the header Content-Usage says train-ai=n",
    "too_short": "fewer characters than corpus.shortest",
    "licence_denied": "its licence is not among those taken",
    "licence_unknown": "it names no licence that is known",
    "quality": "a quality rule; the detail names it",
    "contaminated": "it holds an evaluation text; the detail names it",
    "toxic": "among the most toxic of its language",
    "low_quality": "not among the best of its language",
    "exact_duplicate": "the same text stays at another address, or another reading of the page",
    "near_duplicate": "nearly the same text stays at another address",
    "html_too_deep": "elements nested beyond corpus.limits.html_depth, or too deep for so many",
    "html_too_large": "more tags than corpus.limits.html_tags, or over 30 s or 1 GiB to extract",
    "binary": "a file of a repository that is no text",
    "link": "a link in a repository, which is not followed",
    "no_file": "a device or pipe in a repository",
    "bad_path": "a path in a repository that leads out of it, or names nothing",
    "invalid_utf8": "a line, or a file of a repository, that is not UTF-8",
    "invalid_json": "a line that is not JSON",
    "no_text": "a line without text",
    "line_too_long": "a line beyond corpus.limits.line_bytes",
    "field_too_long": "a metadata field beyond 4,096 characters",
    "record_too_long": "a record or file beyond corpus.limits.record_bytes",
    "truncated_record": "a record that ends early",
    "not_http": "a record of a page without HTTP headers",
    "http_status": "a status other than 200",
    "content_type": "neither HTML nor plain text",
    "content_encoding": "an encoding that cannot be undone",
    "broken_compression": "the rest of the file cannot be decompressed",
    "broken_table": "the rest of the file is no Parquet or Arrow",
    "broken_archive": "the rest of the file is no archive",
    "decompression_limit": "the file grows beyond corpus.limits.expansion",
}
"""Why a document can be dropped."""


@dataclass(kw_only=True)
class LedgerRow:
    """One row of the ledger.

    document_id     SHA-256 over address and content as they came, 32 hexadecimal digits
    input_file      as named in the configuration
    input_position  line of a JSONL, record of a WARC, file of a repository, from 1
    path            of the file inside a repository, "" elsewhere
    decision        "kept" or "dropped"; reason is empty or one of REASONS
    consent         what is known of the host's word (consent.Decision); "planted" for a probe
    rule, agent     the line or signal that decided, and whom it names
    robots_read     when that robots.txt was read
    licence         as the input says it, else as the page's markup does, as SPDX
    licence_basis   what named it: "input", the kind of markup (rel, json-ld, header ...), or in a
                    repository the file's own head (spdx), a licence file (file) or a manifest
    language        of the input, else as identified, else as the page declares it
    language_own, language_other   what the own model and CLD2 said, with their scores
    quality_basis   whose texts set the bounds that the document was held against
    toxicity, quality   scores of the heads, where there are any; -1 where not
    pii_*           values replaced
    bytes_in        of the text or body as it came; of the line when it could not be read
    bytes_out       of the text kept
    duplicate_of    the document that stays in its place
    split           "train", "held_out" or "control" (probes that are never trained on)
    """

    document_id: str
    input_file: str
    input_position: int
    path: str = ""
    url: str = ""
    host: str = ""
    source: str = ""
    licence: str = ""
    licence_basis: str = ""
    language: str = ""
    language_own: str = ""
    language_own_score: float = 0.0
    language_other: str = ""
    language_other_score: float = 0.0
    quality_basis: str = ""
    toxicity: float = UNSCORED
    quality: float = UNSCORED
    date: str = ""
    decision: str = DROPPED
    reason: str = ""
    detail: str = ""
    consent: str = ""
    rule: str = ""
    agent: str = ""
    robots_read: str = ""
    pii_email: int = 0
    pii_ip: int = 0
    pii_iban: int = 0
    pii_card: int = 0
    pii_phone: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    duplicate_of: str = ""
    split: str = ""
    probe_id: str | None = None

    def plain(self) -> dict[str, Any]:
        """The row as column name and value."""
        return asdict(self)


_TYPES = {"int": pa.int64(), "float": pa.float64()}
LEDGER_SCHEMA = pa.schema(
    [(f.name, _TYPES.get(str(f.type), pa.string())) for f in fields(LedgerRow)]
)

DOCUMENTS_SCHEMA = pa.schema(
    [
        ("document_id", pa.string()),
        ("text", pa.string()),
        ("url", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("language", pa.string()),
        ("split", pa.string()),
        ("probe_id", pa.string()),
        ("repeat", pa.int64()),
    ]
)
"""Documents kept. `repeat`: how often it stands in the training stream; 1 unless it is a probe."""
