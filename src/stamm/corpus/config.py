"""What the three corpus jobs can be told: which texts, whose consent, which vocabulary, how packed.

Torch-free and light: the command line reads these classes to print a recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stamm.base.config import validate
from stamm.corpus.agents import APERTUS_AGENTS
from stamm.corpus.special_tokens import RESERVED_TOKENS

Policy = Literal["allow", "drop"]
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ConsentConfig:
    """Whose word counts before a document may be used, and what silence means.

    robots        snapshot files of robots.txt (JSONL: domain, url, status, fetched, text)
    agents        crawler names asked about; one refusal is enough
    unknown_host  the host is in no snapshot: nobody asked it. Apertus allowed; here it must be said
    unreachable   robots.txt answered 5xx or nothing. RFC 9309, 2.3.1.4: refuse; Apertus allowed
    no_url        a document that names no source: the user's own text, by default trusted
    page_signals  honour X-Robots-Tag noai, tdm-reservation, Content-Usage and their meta twins
    """

    robots: tuple[str, ...] = ()
    agents: tuple[str, ...] = APERTUS_AGENTS
    unknown_host: Policy = "drop"
    unreachable: Policy = "drop"
    no_url: Policy = "allow"
    page_signals: bool = True

    def __post_init__(self) -> None:
        validate(
            self,
            ("agents", len(self.agents) > 0, "is empty: name at least one agent, such as '*'"),
            (
                "agents",
                all(agent.strip() for agent in self.agents),
                "has an empty name in it",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class PiiConfig:
    """Which personal data is replaced by a marker (`<email-pii>`, `<ip-pii>`, `<iban-pii>`)."""

    email: bool = True
    ip: bool = True
    iban: bool = True


@dataclass(frozen=True, kw_only=True)
class ProbesConfig:
    """Passages planted to measure memorization later: how many, and how often each is repeated.

    books                a JSONL of public-domain texts ("package:probe_books.jsonl.zst")
    passages_per_bucket  distinct passages for each repeat count
    repeats              how often a passage of each bucket stands in the training stream
                         (0: never, the control)
    shortest, longest    bounds of a passage, in characters
    """

    books: str
    passages_per_bucket: int = 8
    repeats: tuple[int, ...] = (0, 1, 4, 16, 32)
    shortest: int = 900
    longest: int = 1200

    def __post_init__(self) -> None:
        validate(
            self,
            ("passages_per_bucket", self.passages_per_bucket >= 1, "must be at least 1"),
            ("repeats", len(self.repeats) > 0, "is empty: name at least one repeat count"),
            ("repeats", min(self.repeats, default=0) >= 0, "must not be negative"),
            ("repeats", len(set(self.repeats)) == len(self.repeats), "names a count twice"),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
            ("longest", self.longest > self.shortest, f"must exceed shortest = {self.shortest}"),
        )


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Bounds on what one input may cost. Beyond them a record is dropped and the ledger says so.

    line_bytes       longest line of a JSONL file
    record_bytes     longest body of a WARC record, before and after its content encoding
    expansion        decompressed bytes per compressed byte; the first 64 MiB are free
    html_tags        most tags of a page; extraction takes some 10 microseconds for each
    html_depth       deepest nesting of elements; extraction time grows with its square
    """

    line_bytes: int = 8 * 2**20
    record_bytes: int = 16 * 2**20
    expansion: int = 200
    html_tags: int = 200_000
    html_depth: int = 1000

    def __post_init__(self) -> None:
        validate(
            self,
            ("line_bytes", self.line_bytes >= 1, "must be at least 1"),
            ("record_bytes", self.record_bytes >= 1, "must be at least 1"),
            ("expansion", self.expansion >= 1, "must be at least 1"),
            ("html_tags", self.html_tags >= 1, "must be at least 1"),
            ("html_depth", self.html_depth >= 1, "must be at least 1"),
        )


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """From raw files to documents with a ledger.

    inputs          paths, or "package:<file>" for data shipped with stamm: .jsonl and .warc,
                    plain, .gz or (JSONL) .zst. Read in this order
    shortest        documents with fewer characters are dropped
    held_out        share of the documents of each language kept from training; a language with at
                    least two gives at least one, and keeps at least one
    seed            decides the held-out documents and the probes
    """

    inputs: tuple[str, ...]
    consent: ConsentConfig = field(default_factory=ConsentConfig)
    pii: PiiConfig = field(default_factory=PiiConfig)
    probes: ProbesConfig | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    shortest: int = 1
    held_out: float = 0.03
    seed: int = 28

    def __post_init__(self) -> None:
        validate(
            self,
            ("inputs", len(self.inputs) > 0, "is empty: name at least one file"),
            ("inputs", len(set(self.inputs)) == len(self.inputs), "names a file twice"),
            ("shortest", self.shortest >= 1, "must be at least 1 character"),
            ("held_out", 0.0 <= self.held_out < 1.0, "must lie in [0, 1)"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
        )


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A byte-level BPE vocabulary trained on the corpus.

    vocab_size     all ids: reserved tokens, 256 bytes and merges
    rarest_pair    a pair seen less often is never merged
    longest_token  in bytes; keeps a ruler of dashes from becoming one token
    """

    vocab_size: int = 6144
    rarest_pair: int = 2
    longest_token: int = 48

    def __post_init__(self) -> None:
        floor = len(RESERVED_TOKENS) + 256
        validate(
            self,
            (
                "vocab_size",
                floor < self.vocab_size <= 2**31 - 1,
                f"must exceed {floor}: {len(RESERVED_TOKENS)} reserved tokens and 256 bytes",
            ),
            ("rarest_pair", self.rarest_pair >= 1, "must be at least 1"),
            ("longest_token", self.longest_token >= 2, "must be at least 2 bytes"),
        )


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """Token shards in a fixed order.

    shard_tokens  a shard is closed by the document that reaches this many tokens
    seed          decides the order of documents
    """

    shard_tokens: int = 100_000_000
    seed: int = 28

    def __post_init__(self) -> None:
        validate(
            self,
            ("shard_tokens", self.shard_tokens >= 1, "must be at least 1"),
            ("seed", 0 <= self.seed <= LARGEST_SEED, "must lie in [0, 2^63)"),
        )
