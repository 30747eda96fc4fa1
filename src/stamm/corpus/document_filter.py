"""Document filters: consent and extraction, then the corpus filters in their order.

The built-in corpus filters are written against the protocol of a user's filter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stamm.base.stopwatch import Stopwatch
from stamm.corpus.classifiers.classifier import TextClassifier
from stamm.corpus.config import FilterConfig
from stamm.corpus.consent.policies import ConsentPolicies
from stamm.corpus.consent.signals import PageRefusal, unread_terms
from stamm.corpus.contamination.index import Index, hits_text
from stamm.corpus.corpus_filter import (
    FILLED,
    FILTER_COLUMNS,
    CorpusFilter,
    FilterDocument,
    FilterResult,
    Value,
    added_by,
    in_order,
    load_filters,
)
from stamm.corpus.dedup.shingles import hash_words
from stamm.corpus.documents import LONGEST_FIELD, InputRecord, Signals, UnreadableRecord
from stamm.corpus.extract import ExtractedPage, UnusablePageError, extract
from stamm.corpus.language.codes import UNDETERMINED, declared_language, language_tag
from stamm.corpus.language.config import LanguageConfig
from stamm.corpus.language.identify import LanguageIdentifier
from stamm.corpus.ledger import KEPT, PII_KINDS, LedgerRow
from stamm.corpus.licences.config import LicenceConfig
from stamm.corpus.licences.expression import licence_verdict
from stamm.corpus.licences.names import spdx_expression
from stamm.corpus.licences.page import page_licence
from stamm.corpus.pii.config import PiiConfig
from stamm.corpus.pii.replace import replace_pii
from stamm.corpus.quality.config import QualityConfig
from stamm.corpus.quality.rules import QualityFilter


def _filled(*names: str) -> Mapping[str, Value]:
    return {name: FILLED[name] for name in names}


class LengthRule:
    """Drops texts with fewer characters than `shortest`."""

    name = "length"
    reasons = ("too_short",)

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest

    def __call__(self, document: FilterDocument) -> FilterResult | None:
        """Whether the text is long enough."""
        if len(document.text.strip()) >= self._shortest:
            return None
        return FilterResult(drop="", reason="too_short")


class LicenceRule:
    """Drops documents whose licence is not allowed; names that of the page where the input has none."""

    name = "licence"
    reasons = ("licence_denied", "licence_unknown")
    columns = _filled("licence", "licence_basis")

    def __init__(self, config: LicenceConfig) -> None:
        self._config = config

    def __call__(self, document: FilterDocument) -> FilterResult | None:
        """The verdict on the licence of the input, else on that of the page's markup."""
        unknown = self._config.unknown
        expression, columns = spdx_expression(document.licence), {}
        if not document.licence:
            licence = page_licence(document.marks, document.metas, document.signals.values("link"))
            expression = licence.expression
            basis = licence.evidence[0].signal if licence.evidence else ""
            columns = {"licence": expression, "licence_basis": basis}
        verdict = licence_verdict(expression, self._config)
        is_own = unknown == "own" and not document.url and not (document.licence or expression)
        if verdict == "denied" or (verdict == "unknown" and unknown != "allow" and not is_own):
            return FilterResult(drop="", reason=f"licence_{verdict}", columns=columns)
        return FilterResult(columns=columns)


class LanguageRule:
    """Names the language: of the input, else identified, else declared by the page."""

    name = "language"
    columns = _filled(
        "language", "language_own", "language_own_score", "language_other", "language_other_score"
    )

    def __init__(self, config: LanguageConfig | None) -> None:
        self._identifier = LanguageIdentifier(config) if config else None

    def __call__(self, document: FilterDocument) -> FilterResult:
        """The language, with the guesses of both models where it is identified."""
        text = document.text
        declared = declared_language(document.declared_language, text)
        columns: dict[str, str | float] = {}
        identified = UNDETERMINED
        if self._identifier is not None:
            guess = self._identifier.identify(text)
            columns |= {"language_own": guess.own, "language_own_score": guess.own_score}
            columns |= {"language_other": guess.other, "language_other_score": guess.other_score}
            identified = guess.language
        named = identified if identified != UNDETERMINED else declared
        columns["language"] = language_tag(document.given_language, text) or named
        return FilterResult(columns=columns)


class QualityBoundsRule:
    """Drops documents that break a quality rule, named in the detail."""

    name = "quality"
    columns = _filled("quality_basis")

    def __init__(self, config: QualityConfig) -> None:
        self._filter = QualityFilter(config)

    def __call__(self, document: FilterDocument) -> FilterResult:
        """The verdict of the first rule that is broken."""
        verdict = self._filter.judge(document.text, document.language)
        detail = f"{verdict.rule}: {verdict.value:.4g}, bound {verdict.bound:.4g}"
        return FilterResult(
            drop=detail if verdict.rule else None, columns={"quality_basis": verdict.basis}
        )


class ContaminationRule:
    """Drops documents that contain an evaluation text, named in the detail."""

    name = "contamination"
    reasons = ("contaminated",)

    def __init__(self, index: Index) -> None:
        self._index = index

    def __call__(self, document: FilterDocument) -> FilterResult | None:
        """Whether the index finds an evaluation text."""
        hits = self._index.hits(hash_words(document.text))
        return FilterResult(drop=hits_text(hits), reason="contaminated") if hits else None


class ClassifierScores:
    """Scores toxicity and quality; thresholds are applied over all documents."""

    name = "classifiers"
    columns = _filled("toxicity", "quality")

    def __init__(self, **folders: Path | None) -> None:
        self._classifiers = {
            column: TextClassifier.load(folder) for column, folder in folders.items() if folder
        }

    def __call__(self, document: FilterDocument) -> FilterResult:
        """The score of each classifier."""
        return FilterResult(
            columns={
                column: classifier.score(document.text, document.language)
                for column, classifier in self._classifiers.items()
            }
        )


class PiiMarkers:
    """Replaces personal data by markers, and counts them by kind."""

    name = "pii"
    columns = _filled(*(f"pii_{kind}" for kind in PII_KINDS))

    def __init__(self, config: PiiConfig) -> None:
        self._config = config

    def __call__(self, document: FilterDocument) -> FilterResult:
        """The text with markers."""
        cleaned = replace_pii(document.text, self._config, document.language)
        counts = {f"pii_{kind}": getattr(cleaned, kind) for kind in PII_KINDS}
        return FilterResult(text=cleaned.text, columns=counts)


def built_in_filters(
    config: FilterConfig, index: Index | None, toxicity: Path | None, quality: Path | None
) -> list[CorpusFilter]:
    """The built-in filters that the configuration asks for, loaded once in a process.

    index               of the evaluation texts, if any
    toxicity, quality   folders of the classifiers
    """
    filters: list[CorpusFilter | None] = [
        LengthRule(config.shortest),
        LicenceRule(config.licences) if config.licences else None,
        LanguageRule(config.language),
        QualityBoundsRule(config.quality) if config.quality else None,
        ContaminationRule(index) if index is not None else None,
        ClassifierScores(toxicity=toxicity, quality=quality) if toxicity or quality else None,
        PiiMarkers(config.pii),
    ]
    return [function for function in filters if function is not None]


class DocumentFilter:
    """Filters documents one at a time; the result does not depend on earlier ones."""

    def __init__(
        self,
        config: FilterConfig,
        index: Index | None,
        toxicity: Path | None,
        quality: Path | None,
        filters: Sequence[str],
    ) -> None:
        """Load the index, the classifiers of the folders and the user's filters, once in a process."""
        self._config = config
        own = load_filters(filters)
        self._filters = in_order(built_in_filters(config, index, toxicity, quality), own)
        self.columns = added_by(own)

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
            own=dict(self.columns),
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
        """The text as kept; "" with a reason in `row` when a filter drops the document."""
        document = FilterDocument(
            text=page.text,
            given_language=record.language,
            declared_language=page.lang,
            marks=page.marks,
            metas=page.metas,
            signals=record.signals,
            **{name: getattr(row, name) for name in FILTER_COLUMNS},
        )
        for loaded in self._filters:
            result = loaded.apply(document)
            stopwatch.add("filters" if loaded.reference else loaded.name)
            row.fill(result.columns)
            if result.drop is not None:
                row.reason, row.detail = result.reason, result.drop
                return ""
            document = document.after(result)
        return document.text


def _refused(row: LedgerRow, refusal: PageRefusal | None) -> bool:
    if refusal is None:
        return False
    row.reason, row.rule, row.agent = refusal.reason, refusal.rule, refusal.agent
    return True
