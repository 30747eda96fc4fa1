"""Decides one document after another: consent first, then text, personal data and duplicates."""

from __future__ import annotations

from stamm.corpus.config import CorpusConfig
from stamm.corpus.consent import Consent
from stamm.corpus.duplicates import Duplicates
from stamm.corpus.extract import CostlyPageError, extract
from stamm.corpus.language import UNDETERMINED, declared_language
from stamm.corpus.ledger import KEPT, LedgerRow
from stamm.corpus.pii import replace_pii
from stamm.corpus.records import Record, Unread
from stamm.corpus.signals import PageRefusal, header_refusal, meta_refusal


class Screen:
    """Screens the documents of a run in the order they come; the first of two twins is kept."""

    def __init__(self, config: CorpusConfig) -> None:
        self._config = config
        self._duplicates = Duplicates()

    def judge(self, record: Record | Unread, consent: Consent) -> tuple[LedgerRow, str]:
        """The ledger row of a record, and its text when it is kept ("" otherwise)."""
        row = LedgerRow(
            document_id=record.content_id,
            input_file=record.place.file,
            input_position=record.place.position,
            url=record.url,
        )
        if isinstance(record, Unread):
            row.reason, row.detail, row.bytes_in = record.reason, record.detail, record.size
            return row, ""
        row.source, row.licence, row.date = record.source, record.licence, record.date
        row.language = record.language or UNDETERMINED
        row.bytes_in = len(record.content)
        text = self._allowed_text(record, row, consent)
        return row, self._finish(text, row) if text is not None else ""

    def _allowed_text(self, record: Record, row: LedgerRow, consent: Consent) -> str | None:
        """The text of a record whose use nobody refused; None, with the reason in `row`."""
        decision = consent.ask(record.url)
        row.consent, row.host = decision.consent, decision.host
        row.rule, row.agent, row.robots_read = decision.rule, decision.agent, decision.read
        if not decision.allowed:
            row.reason = decision.consent
            return None
        agents = self._config.consent.agents
        honour = self._config.consent.page_signals
        if honour and self._refused(row, header_refusal(record.signals, agents)):
            return None
        if not record.is_html:
            return record.content.decode()
        try:
            page = extract(record.content, record.charset, self._config.limits)
        except CostlyPageError as error:
            row.reason, row.detail = error.reason, error.detail
            return None
        if honour and self._refused(row, meta_refusal(page.metas, agents)):
            return None
        row.language = record.language or declared_language(page.lang, page.text)
        return page.text

    def _refused(self, row: LedgerRow, refusal: PageRefusal | None) -> bool:
        if refusal is None:
            return False
        row.reason, row.rule, row.agent = refusal.reason, refusal.rule, refusal.agent
        return True

    def _finish(self, text: str, row: LedgerRow) -> str:
        if len(text.strip()) < self._config.shortest:
            row.reason = "too_short"
            return ""
        cleaned = replace_pii(text, self._config.pii)
        row.pii_email, row.pii_ip, row.pii_iban = cleaned.email, cleaned.ip, cleaned.iban
        # After personal data is gone: two texts that differ only there are one text from now on.
        known = self._duplicates.first(cleaned.text, row.document_id)
        if known is not None:
            row.reason, row.duplicate_of = "exact_duplicate", known
            return ""
        row.decision, row.bytes_out = KEPT, len(cleaned.text.encode())
        return cleaned.text
