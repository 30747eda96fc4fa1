"""Steps for a datatrove pipeline; datatrove must be installed.

pipeline = [
    JsonlReader("raw/"),
    ScreenFilter(FilterConfig(inputs=("datatrove",), consent=..., quality=QualityConfig())),
    JsonlWriter("clean/"),
]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from stamm.base.errors import ConfigError
from stamm.corpus.adapters.document import (
    Document,
    check_files,
    filter_document,
    replace_personal_data,
)
from stamm.corpus.config import FilterConfig
from stamm.corpus.limits import FieldNames
from stamm.corpus.pii.config import PiiConfig

try:
    from datatrove.pipeline.base import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        PipelineStep,
    )
    from datatrove.pipeline.filters.base_filter import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        BaseFilter,
    )
except ImportError as error:
    raise ConfigError(
        f"stamm's steps for datatrove need {error.name}, which is not installed",
        fix='Run pip install "datatrove[io,processing]"',
    ) from error


class ScreenFilter(BaseFilter):  # type: ignore[misc]
    """Applies stamm's document filters: consent, licence, language, quality, contamination, PII.

    The reason of a drop is the ledger's (stamm.corpus.ledger.REASONS, or the name of a corpus
    filter); datatrove counts it and passes it to its exclusion writer. Metadata written into
    documents: stamm.corpus.adapters.document.

    config             config.inputs is not read
    exclusion_writer   datatrove's writer for what is dropped
    Raises             DataError when a file that the configuration names is missing
    """

    name = "stamm screen"

    def __init__(self, config: FilterConfig, exclusion_writer: Any = None) -> None:
        check_files(config)
        super().__init__(exclusion_writer)
        self.config = config

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """True for a document that is kept, else False and the reason."""
        reason = filter_document(doc, self.config)
        return (False, reason) if reason else True


class PersonalData(PipelineStep):  # type: ignore[misc]
    """Replaces personal data by markers, such as `<email-pii>`, and counts what it replaced.

    names   metadata field of the language, which decides the format of national phone numbers
    """

    type = "stamm"
    name = "personal data"

    def __init__(self, config: PiiConfig | None = None, names: FieldNames | None = None) -> None:
        super().__init__()
        self.config = config or PiiConfig()
        self.names = names or FieldNames()

    def run(
        self, data: Iterable[Document] | None, rank: int = 0, world_size: int = 1
    ) -> Iterator[Document]:
        """The documents, with personal data replaced."""
        for document in data or ():
            self.stat_update("total")
            with self.track_time():
                counts = replace_personal_data(document, self.config, self.names)
            for kind, count in counts.items():
                if count:
                    self.stat_update(kind, value=count)
            self.update_doc_stats(document)
            yield document
