"""Lists of domains whose owners opted out, by letter, by contract, or by a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from stamm.base.errors import DataError
from stamm.base.json_text import parse_json
from stamm.corpus.consent.config import ConsentConfig
from stamm.corpus.consent.decision import Decision
from stamm.corpus.consent.hosts import normalize_host
from stamm.corpus.limits import ReadLimits
from stamm.corpus.records import clean_field
from stamm.corpus.streams import BoundedStream, StreamError, bounded_lines

_DOMAIN = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")


class DomainList:
    """A `ConsentSource` that refuses its domains and their subdomains.

    name      name of the list in the ledger: its file's name
    domains   each normalized domain, with its line number
    """

    def __init__(self, name: str, domains: Mapping[str, int]) -> None:
        self._name = clean_field(name)
        self._domains = dict(domains)

    def decide(self, url: str, host: str, config: ConsentConfig) -> Decision | None:
        """The refusal of a host in the list, None for any other host."""
        domain = host.partition(":")[0]
        while domain:
            line = self._domains.get(domain)
            if line is not None:
                rule = f"{domain} in {self._name}, line {line}"
                return Decision(consent="domain_list", allowed=False, rule=rule, host=host)
            domain = domain.partition(".")[2]
        return None


def read_domain_list(path: Path, limits: ReadLimits) -> DomainList:
    """Read a list of domains: one domain a line, or JSONL with a field `domain`.

    Edge     blank lines, and text after "#" on a line of plain text, are ignored; "*.example.org"
             and ".example.org" are example.org; of a repeated domain the first line counts.
    Raises   DataError for a line that names no domain, or only a top level such as "org": a refusal
             must not be skipped, and no owner refuses for all of "org".
    """
    domains: dict[str, int] = {}
    number = 0
    with BoundedStream(path, limits.expansion) as stream:
        try:
            for line in bounded_lines(stream, limits.line_bytes):
                number = line.number
                written = _written(line.data.decode("utf-8-sig").strip())
                if written:
                    domains.setdefault(_domain(written), number)
        except (StreamError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} is not a list of domains: {error}",
                where=f"line {max(number, 1)}",
                fix='Write one domain a line, or {"domain": "example.org"}',
            ) from None
    return DomainList(path.name, domains)


def _written(line: str) -> str:
    if not line.startswith("{"):
        return line.partition("#")[0].strip()
    domain = parse_json(line)["domain"]
    if not isinstance(domain, str) or not domain.strip():
        raise TypeError(f"{str(domain)[:40]!r} is not a domain")
    return domain.strip()


def _domain(written: str) -> str:
    bare = written.removeprefix("*").removeprefix(".")
    domain = normalize_host(bare if "://" in bare else f"//{bare}").partition(":")[0]
    if _DOMAIN.fullmatch(domain) is None:
        raise ValueError(f"{written[:80]!r} names no domain")
    return domain
