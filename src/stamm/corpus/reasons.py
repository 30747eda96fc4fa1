"""Reasons of the ledger: why a document is dropped, and what each means."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "robots_disallow": "robots.txt disallows at least one agent",
    "robots_content_usage": "robots.txt has Content-Usage: train-ai=n or Content-Signal: ai-train=no",
    "robots_unreachable": "the request for robots.txt was answered by 5xx or not at all",
    "robots_unparsable": "robots.txt is an HTML page or binary data",
    "domain_list": "the domain is in a list of opted-out domains",
    "deletion_request": "a deletion request",
    "tdmrep_unparsable": "tdmrep.json cannot be read",
    "ai_txt": "ai.txt disallows text",
    "unknown_host": "no robots.txt of the host was read",
    "no_url": "the document has no URL",
    "bad_url": "the URL cannot be parsed, has no host, or two fields have different URLs",
    "header_noai": "X-Robots-Tag reserves the page",
    "meta_noai": "a meta element reserves the page",
    "tdm_reservation": "tdm-reservation: 1 in a header or meta element",
    "content_usage": "the header Content-Usage has train-ai=n, or Content-Signal ai-train=no",
    "row_opt_out": "a field of the row opts it out, such as noai or robotstxt: disallowed",
    "too_short": "fewer characters than corpus.shortest",
    "licence_denied": "the licence is not allowed",
    "licence_unknown": "no known licence",
    "quality": "a quality rule, named in the detail",
    "contaminated": "contains an evaluation text, named in the detail",
    "toxic": "toxicity score above the threshold of its language",
    "low_quality": "quality score below the threshold of its language",
    "exact_duplicate": "the same text is kept from another document",
    "near_duplicate": "nearly the same text is kept from another document",
    "html_too_deep": "elements nested beyond corpus.limits.html_depth, or too deep for so many",
    "html_too_large": "more tags than corpus.limits.html_tags, or over 30 s or 1 GiB to extract",
    "binary": "a binary file of a repository",
    "link": "a link in a repository; links are not followed",
    "no_file": "a device or pipe in a repository",
    "bad_path": "a path that leads out of the repository, or is empty",
    "invalid_utf8": "a line, or a file of a repository, that is not UTF-8",
    "invalid_json": "a line that is not JSON",
    "no_text": "a line without a text field",
    "bad_value": "a field with a value that cannot be read, such as a date beyond all years",
    "line_too_long": "a line beyond corpus.limits.line_bytes",
    "field_too_long": "a metadata field beyond 4,096 characters",
    "record_too_long": "a record or file beyond corpus.limits.record_bytes",
    "truncated_record": "a record that ends early",
    "not_http": "a record of a page without HTTP headers",
    "http_status": "a status other than 200",
    "content_type": "neither HTML nor plain text",
    "content_encoding": "an unsupported or broken content encoding",
    "broken_compression": "the rest of the file cannot be decompressed",
    "broken_table": "the rest of the file is not Parquet or Arrow",
    "broken_archive": "the rest of the file is not an archive",
    "decompression_limit": "the file grows beyond corpus.limits.expansion",
    "bad_row": "a row of alignment data that cannot be read, for the reason in the detail",
    "empty_answer": "an answer without content",
    "too_long": "more tokens than the context",
    "no_loss_tokens": "no token that the model would learn",
    "no_source": "the row names no source",
}
"""Reasons of the built-in filters. The name of a user's corpus filter is a reason, too."""


def reason_text(reason: str) -> str:
    """Meaning of a reason; one that is not built in is the name of a corpus filter."""
    return REASONS.get(reason, "dropped by the corpus filter of this name")
