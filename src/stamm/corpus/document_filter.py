"""Document filters: consent, extraction, licence, language, quality, contamination, PII, own filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stamm.base.stopwatch import Stopwatch
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.policies import ConsentPolicies
from stamm.corpus.consent.signals import PageRefusal, unread_terms
from stamm.corpus.contamination.index import Index, hits_text
from stamm.corpus.corpus_filter import FILTER_COLUMNS, FilterDocument, LoadedFilter, load_filters
from stamm.corpus.dedup.shingles import hash_words
from stamm.corpus.extract import ExtractedPage, UnusablePageError, extract
from stamm.corpus.language.declared import UNDETERMINED, declared_language, language_tag
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.ledger import KEPT, PII_KINDS, LedgerRow
from stamm.corpus.licences.expression import licence_verdict
from stamm.corpus.licences.names import spdx_expression
from stamm.corpus.licences.page import page_licence
from stamm.corpus.pii.replace import replace_pii
from stamm.corpus.quality.rules import QualityFilter
from stamm.corpus.records import LONGEST_FIELD, InputRecord, Signals, UnreadableRecord


@dataclass(frozen=True, kw_only=True)
class FilterTools:
    """Models and indexes of the document filters; None where they are not configured."""

    language: LanguageIdentifier | None = None
    quality: QualityFilter | None = None
    contamination: Index | None = None
    toxicity_classifier: TextClassifier | None = None
    quality_classifier: TextClassifier | None = None
    filters: tuple[LoadedFilter, ...] = ()

    @classmethod
    def of(
        cls,
        config: FilterConfig,
        index: Index | None,
        toxicity: Path | None,
        quality: Path | None,
        filters: Sequence[str],
    ) -> FilterTools:
        """Load what the configuration needs, once in a process.

        index               of the evaluation texts, if any
        toxicity, quality   folders of the classifiers
        filters             references of corpus filters
        """
        return cls(
            language=LanguageIdentifier(config.language) if config.language else None,
            quality=QualityFilter(config.quality) if config.quality else None,
            contamination=index,
            toxicity_classifier=TextClassifier.load(toxicity) if toxicity else None,
            quality_classifier=TextClassifier.load(quality) if quality else None,
            filters=load_filters(filters),
        )


class DocumentFilter:
    """Filters documents one at a time; the result does not depend on earlier ones."""

    def __init__(self, config: FilterConfig, tools: FilterTools) -> None:
        self._config = config
        self._tools = tools

    def apply(
        self,
        record: InputRecord | UnreadableRecord,
        policies: ConsentPolicies,
        stopwatch: Stopwatch | None = None,
    ) -> tuple[LedgerRow, str]:
        """The ledger row of a record, and its text when it is kept ("" otherwise).

        stopwatch   measures the seconds of each part
        """
        stopwatch = stopwatch or Stopwatch()
        row = LedgerRow(
            document_id=record.content_id,
            input_file=record.place.file,
            input_position=record.place.position,
            path=record.path,
            url=record.url,
        )
        if isinstance(record, UnreadableRecord):
            row.reason, row.detail, row.bytes_in = record.reason, record.detail, record.size
            return row, ""
        row.source, row.licence, row.date = record.source, record.licence, record.date
        row.licence_basis = (record.licence_basis or "input") if record.licence else ""
        row.language = record.language or UNDETERMINED
        row.bytes_in = len(record.content)
        allowed = self._consents(record, row, policies)
        stopwatch.add("consent")
        page = self._page(record, row) if allowed else None
        stopwatch.add("extract")
        if page is not None and record.is_html:
            allowed = self._page_consents(record, row, page, policies)
            stopwatch.add("consent")
        if page is None or not allowed:
            return row, ""
        text = self._filtered_text(record, row, page, stopwatch)
        if text:
            row.decision, row.bytes_out = KEPT, len(text.encode())
        return row, text

    def _consents(self, record: InputRecord, row: LedgerRow, policies: ConsentPolicies) -> bool:
        decision = policies.decide(record.url)
        row.consent, row.host = decision.consent, decision.host
        row.rule, row.agent, row.robots_read = decision.rule, decision.agent, decision.read
        row.unread_terms = policies.unread_terms(decision, record.signals)
        is_own = decision.consent == "no_url" and self._config.consent.no_url == "own"
        if is_own and record.address_field:
            row.rule = f"{record.address_field} has no address, or one that is not read"
        if not decision.allowed or (is_own and record.address_field):
            row.reason = decision.consent
            return False
        refusal = policies.refusal_before_parsing(
            record.url, row.host, record.signals, record.is_html
        )
        return not _refused(row, refusal) and self._may_leave_unread(row)

    def _may_leave_unread(self, row: LedgerRow) -> bool:
        if row.unread_terms and self._config.consent.unread_terms == "drop":
            row.reason = "unread_terms"
        return not row.reason

    def _page_consents(
        self, record: InputRecord, row: LedgerRow, page: ExtractedPage, policies: ConsentPolicies
    ) -> bool:
        named = "; ".join(unread_terms(Signals(), page.licence_links))
        row.unread_terms = "; ".join(filter(None, (row.unread_terms, named)))[:LONGEST_FIELD]
        refusal = policies.refusal_by_meta(
            record.url, row.host, record.signals, page.metas, page.licences
        )
        return not _refused(row, refusal) and self._may_leave_unread(row)

    def _page(self, record: InputRecord, row: LedgerRow) -> ExtractedPage | None:
        if not record.is_html:
            return ExtractedPage(text=record.content.decode(), lang="", metas=())
        try:
            page = extract(record.content, record.charset, self._config.limits)
        except UnusablePageError as error:
            row.reason, row.detail = error.reason, error.detail
            return None
        row.letters_lost = page.letters_lost
        return page

    def _filtered_text(
        self, record: InputRecord, row: LedgerRow, page: ExtractedPage, stopwatch: Stopwatch
    ) -> str:
        """The text as kept; "" with a reason in `row` when the document is dropped."""
        if len(page.text.strip()) < self._config.shortest:
            row.reason = "too_short"
            return ""
        licensed = self._licensed(record, row, page)
        stopwatch.add("licence")
        if not licensed:
            return ""
        self._name_language(record, row, page)
        stopwatch.add("language")
        good = self._good(page.text, row)
        stopwatch.add("quality")
        if not good:
            return ""
        clean = self._uncontaminated(page.text, row)
        stopwatch.add("contamination")
        if not clean:
            return ""
        self._score(page.text, row)
        stopwatch.add("classifiers")
        text = self._without_personal_data(page.text, row)
        stopwatch.add("pii")
        kept = self._passes_filters(text, row)
        if self._tools.filters:
            stopwatch.add("filters")
        return text if kept else ""

    def _licensed(self, record: InputRecord, row: LedgerRow, page: ExtractedPage) -> bool:
        config = self._config.licences
        if config is None:
            return True
        expression = spdx_expression(row.licence)
        if not row.licence:
            found = page_licence(page.marks, page.metas, record.signals.values("link"))
            expression = row.licence = found.expression
            row.licence_basis = found.evidence[0].signal if found.evidence else ""
        verdict = licence_verdict(expression, config)
        is_own = config.unknown == "own" and not record.url and not row.licence
        unknown = verdict == "unknown" and config.unknown != "allow" and not is_own
        if verdict == "denied" or unknown:
            row.reason = f"licence_{verdict}"
            return False
        return True

    def _name_language(self, record: InputRecord, row: LedgerRow, page: ExtractedPage) -> None:
        declared = declared_language(page.lang, page.text)
        identified = UNDETERMINED
        if self._tools.language is not None:
            guess = self._tools.language.identify(page.text)
            row.language_own, row.language_own_score = guess.own, guess.own_score
            row.language_other, row.language_other_score = guess.other, guess.other_score
            identified = guess.language
        named = identified if identified != UNDETERMINED else declared
        row.language = language_tag(record.language, page.text) or named

    def _good(self, text: str, row: LedgerRow) -> bool:
        if self._tools.quality is None:
            return True
        result = self._tools.quality.judge(text, row.language)
        row.quality_basis = result.basis
        if result.rule:
            row.reason = "quality"
            row.detail = f"{result.rule}: {result.value:.4g}, bound {result.bound:.4g}"
        return not result.rule

    def _uncontaminated(self, text: str, row: LedgerRow) -> bool:
        if self._tools.contamination is None:
            return True
        hits = self._tools.contamination.hits(hash_words(text))
        if hits:
            row.reason, row.detail = "contaminated", hits_text(hits)
        return not hits

    def _score(self, text: str, row: LedgerRow) -> None:
        if self._tools.toxicity_classifier is not None:
            row.toxicity = self._tools.toxicity_classifier.score(text, row.language)
        if self._tools.quality_classifier is not None:
            row.quality = self._tools.quality_classifier.score(text, row.language)

    def _without_personal_data(self, text: str, row: LedgerRow) -> str:
        cleaned = replace_pii(text, self._config.pii, row.language)
        for kind in PII_KINDS:
            setattr(row, f"pii_{kind}", getattr(cleaned, kind))
        return cleaned.text

    def _passes_filters(self, text: str, row: LedgerRow) -> bool:
        """Whether every corpus filter keeps the document; the first that does not is its reason."""
        if not self._tools.filters:
            return True
        document = FilterDocument(
            text=text, **{name: getattr(row, name) for name in FILTER_COLUMNS}
        )
        for each in self._tools.filters:
            detail = each.apply(document)
            if detail is not None:
                row.reason, row.detail = each.name, detail
                return False
        return True


def _refused(row: LedgerRow, refusal: PageRefusal | None) -> bool:
    if refusal is None:
        return False
    row.reason, row.rule, row.agent = refusal.reason, refusal.rule, refusal.agent
    return True
