"""Special tokens: the reserved ids of the vocabulary, 0 to 72.

The ids are those of Apertus, so that code written for its models finds the same ids here. Slots with
another use there (LaTeX pieces) or without a name are reserved here; two of the unnamed ones mark
kinds of personal data that Apertus does not replace.

Source   swiss-ai/apertus-tokenizer-development, apertus_tokenizer_design.md, addendum on version 1;
         chat tokens also swiss-ai/apertus_format.
"""

from __future__ import annotations

UNKNOWN_ID = 0
BEGIN_ID = 1
END_ID = 2
PAD_ID = 3
PHONE_ID = 12
CARD_ID = 13
IBAN_ID = 36
EMAIL_ID = 37
IP_ID = 38

_NAMED: tuple[tuple[int, str], ...] = (
    (UNKNOWN_ID, "<unk> <s> </s> <pad>"),
    (PHONE_ID, "<phone-pii> <card-pii>"),
    (18, "<filename> <gh_stars> <issue_start> <issue_comment> <issue_closed>"),
    (23, "<jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output> <empty_output>"),
    (28, "<commit_before> <commit_msg> <commit_after> <reponame>"),
    (32, "<think> </think> <answer> </answer>"),
    (IBAN_ID, "<iban-pii> <email-pii> <ip-pii>"),
    (39, "<file_sep> <code_to_intermediate> <intermediate_to_code>"),
    (42, "<pr> <pr_status> <pr_is_merged> <pr_base> <pr_file>"),
    (47, "<pr_base_code> <pr_diff> <pr_diff_hunk> <pr_comment> <pr_event_id>"),
    (52, "<pr_review> <pr_review_state> <pr_review_comment> <pr_in_reply_to_review_id>"),
    (56, "<pr_in_reply_to_comment_id> <pr_diff_hunk_comment_line>"),
    (58, "<|fim_begin|> <|fim_hole|> <|fim_end|>"),
    (61, "<|system_start|> <|system_end|> <|developer_start|> <|developer_end|>"),
    (65, "<|user_start|> <|user_end|> <|assistant_start|> <|assistant_end|>"),
    (69, "<|inner_prefix|> <|inner_suffix|> <|tools_prefix|> <|tools_suffix|>"),
)
_COUNT = 73


def _tokens() -> tuple[str, ...]:
    names = [f"<SPECIAL_{i}>" for i in range(_COUNT)]
    for first, block in _NAMED:
        for offset, name in enumerate(block.split()):
            names[first + offset] = name
    return tuple(names)


RESERVED_TOKENS: tuple[str, ...] = _tokens()
"""The token of each reserved id, in order."""

PII_MARKERS: dict[str, str] = {
    "email": RESERVED_TOKENS[EMAIL_ID],
    "ip": RESERVED_TOKENS[IP_ID],
    "iban": RESERVED_TOKENS[IBAN_ID],
    "card": RESERVED_TOKENS[CARD_ID],
    "phone": RESERVED_TOKENS[PHONE_ID],
}
"""The marker that replaces each kind of personal data."""
