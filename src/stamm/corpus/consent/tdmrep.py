"""Parser of tdmrep.json: whether text and data mining of an address is reserved, and by which rule.

Source   W3C TDM Reservation Protocol, final group report 2024-05-10, sections "TDM File on the
         Origin Server" and "Processing priority".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from stamm.base.json_text import parse_json
from stamm.corpus.consent.robots_matcher import (
    matches,
    normalize_path,
    normalize_pattern,
    path_of,
)
from stamm.corpus.documents import clean_field

MOST_RULES = 1000
LONGEST_LOCATION = 2048
LONGEST_POLICY = 1024
LONGEST_TEXT = 500 * 1024
_ORIGIN = re.compile(r"https?://[^/]*", re.IGNORECASE)
# Numbers, booleans and text are all in use.
_VALUES = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, kw_only=True)
class TdmReservation:
    """The state of the text and data mining opt-out of an address.

    state    "silent" without a statement, "unparsable" for a file that cannot be parsed
    rule     the statement that decided
    policy   address of the licensing policy, "" when there is none
    """

    state: Literal["reserved", "not_reserved", "silent", "unparsable"] = "silent"
    rule: str = ""
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class _TdmRule:
    location: str
    pattern: bytes
    reserved: bool
    policy: str


class TdmrepFile:
    """The rules of one file.

    Edge     an HTML page is not a tdmrep.json, and counts as silent: "failure to provide access to
             such a representation implies that the origin server does not implement this protocol".
             Other text that is not a JSON array of at most 1,000 rules is unparsable.
             A rule without a location, or with a value other than 0 and 1, is ignored, as defined
             there. Of a location that is a whole address the path counts, and a missing first slash
             is added: the owner meant something. Both go beyond the report.
    Checked  tests/unit/corpus/consent/test_tdmrep.py
    """

    def __init__(self, text: str) -> None:
        self._rules: list[_TdmRule] = []
        self._defect = ""
        bare = text.lstrip("\ufeff \t\r\n")
        if bare.startswith("<") or not bare:
            return
        try:
            self._rules = _rules(bare)
        except (ValueError, RecursionError) as error:
            self._defect = clean_field(str(error)[:200])

    def answer(self, url: str) -> TdmReservation:
        """The reservation of an address: the first rule that matches holds."""
        if self._defect:
            return TdmReservation(state="unparsable", rule=self._defect)
        path = normalize_path(path_of(url).encode("utf-8", "surrogatepass"))
        for rule in self._rules:
            if matches(rule.pattern, path):
                return TdmReservation(
                    state="reserved" if rule.reserved else "not_reserved",
                    rule=f"location {rule.location}: tdm-reservation {int(rule.reserved)}",
                    policy=rule.policy,
                )
        return TdmReservation()


def reservation_value(value: object) -> bool | None:
    """Whether a tdm-reservation reserves; None for a value that is neither 0 nor 1."""
    if isinstance(value, (bool, int, str)):
        return _VALUES.get(str(value).strip().lower())
    return None


def policy_value(value: object, reserved: bool) -> str:
    """A tdm-policy cut to a bounded length; "" where nothing is reserved."""
    if not reserved or not isinstance(value, str):
        return ""
    return clean_field(value.strip()[:LONGEST_POLICY])


def _rules(text: str) -> list[_TdmRule]:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{len(text)} characters, at most {LONGEST_TEXT}")
    entries = parse_json(text)
    if not isinstance(entries, list):
        raise ValueError("not an array of rules")
    if len(entries) > MOST_RULES:
        raise ValueError(f"{len(entries)} rules, at most {MOST_RULES}")
    rules = [rule for entry in entries if (rule := _rule(entry)) is not None]
    if entries and not rules:
        raise ValueError(f"none of {len(entries)} rules is valid")
    return rules


def _rule(entry: Any) -> _TdmRule | None:
    if not isinstance(entry, dict):
        return None
    location, reserved = entry.get("location"), reservation_value(entry.get("tdm-reservation"))
    if not isinstance(location, str) or reserved is None:
        return None
    if len(location) > LONGEST_LOCATION:
        raise ValueError(f"a location of {len(location)} characters, at most {LONGEST_LOCATION}")
    path = _ORIGIN.sub("", location.strip(), count=1)
    if not path.startswith(("/", "*")):
        path = f"/{path}"
    return _TdmRule(
        location=clean_field(location.strip()),
        pattern=normalize_pattern(path.encode("utf-8", "surrogatepass")),
        reserved=reserved,
        policy=policy_value(entry.get("tdm-policy"), reserved),
    )
