"""Configuration of judges: the model that judges, how it is asked, and how it is validated. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from stamm.base.bounds import (
    AtLeastOne,
    Natural,
    NotNegative,
    Positive,
    Share,
    Text,
    at_least,
    distinct,
    within,
)
from stamm.base.config import Bounded, validate
from stamm.base.errors import ConfigError
from stamm.base.json_text import parse_json

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
RESERVED = frozenset(
    {
        "messages", "model", "temperature", "max_tokens", "logprobs", "top_logprobs", "stream", "n",
        "best_of", "tools",
    }
)  # fmt: skip
"""Fields of a request that `extra_body` may not set."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Connection to an endpoint, and its budget. May change when a run is resumed.

    base_url              up to and with the version: "http://localhost:8000/v1"
    api_key_env           environment variable that holds the API key; "": no key is sent
    timeout_s             for a whole reply, from connecting to its last byte
    retries               of a request after 408, 409, 429, 5xx, a timeout, a broken connection or reply
    backoff_s, max_wait_s   pause before the first retry, doubled before each next one, with jitter,
                          and the longest; an endpoint that asks for more (Retry-After) ends the run
    concurrency           requests that are open at once
    requests_per_minute   0: no limit
    max_requests, max_tokens, max_cost   budget of the run, stored replies included; 0: no limit
    prompt_price, completion_price       per million tokens, in the currency of max_cost
    max_reply_bytes       longer replies are refused
    """

    base_url: str = ""
    api_key_env: str = ""
    timeout_s: Annotated[float, within("(0, 3600]")] = 120.0
    retries: Annotated[int, within("[0, 20]")] = 5
    backoff_s: Positive = 1.0
    max_wait_s: Annotated[float, within("(0, 3600]")] = 60.0
    concurrency: Annotated[int, within("[1, 1024]")] = 8
    requests_per_minute: NotNegative = 0.0
    max_requests: Natural = 0
    max_tokens: Natural = 0
    max_cost: NotNegative = 0.0
    prompt_price: NotNegative = 0.0
    completion_price: NotNegative = 0.0
    max_reply_bytes: Annotated[int, at_least(1000)] = 1_000_000

    def __post_init__(self) -> None:
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            # The value may be the key itself, so the error does not show it.
            raise ConfigError(
                "connection.api_key_env is not the name of an environment variable (value not shown)",
                fix="Put the key into a variable, and set api_key_env to its name",
            )
        prices = self.prompt_price + self.completion_price
        validate(
            self,
            ("base_url", not self.base_url or _is_http(self.base_url), "is not an http(s) address"),
            ("backoff_s", self.backoff_s <= self.max_wait_s, "must not exceed max_wait_s"),
            (
                "max_cost",
                self.max_cost == 0 or prices > 0,
                "needs prompt_price or completion_price",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """A judge behind an OpenAI-compatible endpoint (POST BASE_URL/chat/completions).

    model          its name there
    digits         "logprobs" reads the distribution over digit tokens from top_logprobs; "sampled"
                   takes the digit that the reply consists of, for endpoints without logprobs
    top_logprobs   alternatives asked for at each token
    temperature    None: left out of the request, as models need that refuse it
    extra_body     more fields of the request as a JSON object, such as
                   {"chat_template_kwargs": {"enable_thinking": false}}
    recorded       a file of replies of an earlier run (requests.jsonl), used before the endpoint
    connection     where it is, and limits
    """

    model: str = ""
    digits: Literal["logprobs", "sampled"] = "logprobs"
    top_logprobs: Annotated[int, within("[2, 100]")] = 20
    temperature: Annotated[float | None, within("[0, 2]")] = 0.0
    extra_body: str = ""
    recorded: str = ""
    connection: Connection = field(default_factory=Connection)

    def __post_init__(self) -> None:
        validate(
            self, ("extra_body", self._extra_is_valid(), "is not a JSON object of further fields")
        )

    def _extra_is_valid(self) -> bool:
        try:
            return not RESERVED & self.extra().keys()
        except (ValueError, AttributeError, RecursionError):
            return False

    def extra(self) -> dict[str, Any]:
        """The fields of `extra_body`."""
        fields: dict[str, Any] = parse_json(self.extra_body) if self.extra_body else {}
        return fields


@dataclass(frozen=True, kw_only=True)
class LocalJudge:
    """A judge on this machine: the distribution over digit tokens is read from its logits.

    model      a run folder, one arm of it, or a folder in the layout of transformers
    arm        the arm of a run folder
    recorded   a file of replies of an earlier run (requests.jsonl), used before the model
    """

    model: str = ""
    arm: str = ""
    recorded: str = ""


JudgeConfig = EndpointJudge | LocalJudge


@dataclass(frozen=True, kw_only=True)
class RatingConfig:
    """Rating and ranking of answers.

    articles          of the charter that answers are rated by; empty: all
    top               best answers of a prompt that are ordered by pairwise comparison; 0: none
    min_digit_mass    smallest probability of the digits together; a reply below it is prose
    max_characters    longest prompt and longest answer; a row with a longer one is left unrated
    max_unrated       largest share of rows without a rating, and of comparisons without a result
    """

    articles: Annotated[tuple[AtLeastOne, ...], distinct("names an article twice")] = ()
    top: Annotated[int, within("[0, 64]")] = 5
    min_digit_mass: Share = 0.5
    max_characters: AtLeastOne = 20_000
    max_unrated: Annotated[float, within("[0, 1)")] = 0.05

    def __post_init__(self) -> None:
        validate(self, ("top", self.top != 1, "must be 0, or at least 2"))


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Bounded):
    """Validation of a judge on chains of progressively degraded answers.

    good_answers   rows with a prompt and an answer of at least 20 words that is known to be good;
                   "package:good_answers.jsonl" has 12
    chains         answers that are degraded, the first of the file; 0: all
    steps          degradations of each, one after the other, at most 8
    pairwise       pairs of a chain that are compared: all, adjacent ones, or none
    articles       of the charter that the ratings are by; empty: the first
    min_ordered    smallest share of all pairs of a chain that ratings, and comparisons, must order
                   rightly, else the run stops; 0: no limit
    """

    good_answers: Text = "package:good_answers.jsonl"
    chains: Natural = 0
    steps: Annotated[int, within("[1, 8]")] = 8
    pairwise: Literal["all", "adjacent", "none"] = "all"
    articles: Annotated[tuple[AtLeastOne, ...], distinct("names an article twice")] = ()
    min_ordered: Share = 0.7


@dataclass(frozen=True, kw_only=True)
class CharterConfig:
    """Configuration of the charter job, and of the validation of its judge.

    charter      a Markdown file, or "package:apertus"
    answers      rows with a prompt and an answer; "" in the validation job
    validation   None: the judge is not validated
    """

    charter: str = "package:apertus"
    answers: str = ""
    judge: JudgeConfig = field(default_factory=EndpointJudge)
    rating: RatingConfig = field(default_factory=RatingConfig)
    validation: ValidationConfig | None = field(default_factory=ValidationConfig)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= 2000
    clean = not (parts.query or parts.fragment or parts.username or parts.password)
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port_is_valid
        and plain
        and clean
    )
