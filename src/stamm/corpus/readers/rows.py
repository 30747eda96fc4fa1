"""Documents from rows with named values: which field is read as what, and which are not used.

Published corpora keep the same fact under different names: the address of a document is `url`
(FineWeb, C4), `metadata.url` (dolma, datatrove) or `WARC-Target-URI` (Common Crawl). `ROW_KEYS` has
the names that are known, `FieldUse` counts what was read from a file.

Source   the data cards of dolma, FineWeb, FineWeb-2, FinePDFs, C4, RedPajama, DCLM, OSCAR, HPLT,
         The Stack and the Common Pile; datatrove's JsonlWriter.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError, visible
from stamm.base.files import read_json
from stamm.base.json_text import parse_json
from stamm.base.known_keys import KnownKeys, RefusedKey, UnknownKeys
from stamm.corpus.documents import (
    LONGEST_FIELD,
    OPT_OUT_FIELD,
    InputRecord,
    Place,
    Signals,
    UnreadableRecord,
    clean_field,
    content_id,
    whole_text,
)
from stamm.corpus.licences.expression import join_expressions
from stamm.corpus.licences.families import UNKNOWN_TERMS
from stamm.corpus.licences.names import spdx_expression
from stamm.corpus.limits import FIELDS, FieldNames, NamedFields
from stamm.corpus.streams import UnusableError

_KEYS = read_json(Path(__file__).with_name("known_keys.json"))
# Names of each field, in lower case and with "_" for "-"; the first name that a row has is read.
_NAMES: dict[str, tuple[str, ...]] = {field: tuple(names) for field, names in _KEYS["read"].items()}
# Two of these that differ are two addresses: the row does not say whose consent it needs. Other names
# count where the value is a web address.
_ADDRESSES = ("url", "warc_target_uri", "target_uri")
_CONTAINERS = ("metadata", "meta", "warc_headers", "warc_metadata")
_HEADERS = ("headers", "http_headers", "response_headers", "http_response_headers")
_SIGNALS: dict[str, str] = _KEYS["signals"]
_CUT = "warc_truncated"
_MOST_NAMES = 20
_DEEPEST = 8
_YES = (True, 1, "true", "t", "yes", "y", "on", "1", "allowed", "allow", "granted", "given", "unknown",
        "")  # fmt: skip
_NO = (False, 0, "false", "f", "no", "n", "off", "0", "none", "")
_REFUSING = ("disallow", "disallowed", "deny", "denied", "refused", "forbidden", "blocked", "reserved",
             "opt-out", "opt_out", "optout", "opted-out", "opted_out", "out")  # fmt: skip
_ROBOTS = RefusedKey(
    meaning="records a refusal by robots.txt or a robots tag",
    neutral=(*_YES, "all", "index", "follow", "index,follow", "index, follow"),
)
_OPT_OUT = RefusedKey(meaning="reserves the document", neutral=_NO)
_CONSENT = RefusedKey(meaning="denies consent", neutral=_YES)

ROW_KEYS = KnownKeys(
    reader="rows of a corpus",
    read=frozenset({*_CONTAINERS, *_HEADERS, *_SIGNALS, _CUT}.union(*_NAMES.values())),
    harmless=frozenset(_KEYS["harmless"]),  # identifiers, annotations of other pipelines
    refused={
        **dict.fromkeys(
            ("noai", "no_ai", "opt_out", "opted_out", "optout", "ai_opt_out", "tdm_opt_out",
             "do_not_train", "no_train"), _OPT_OUT,
        ),
        **dict.fromkeys(("robots", "robotstxt", "robots_txt", "robots_status"), _ROBOTS),
        **dict.fromkeys(("consent", "ai_consent", "robots_allowed", "allow_training"), _CONSENT),
    },
)  # fmt: skip
"""Keys of a row, at its top and in `metadata`, `meta` or `warc_headers`; a refused one opts the row out."""

# Other names of opt-outs, by their words; they count where the value is a flag.
_RESERVES = re.compile(
    r"_opt(?:s|ed|ing)?_?outs?_|_no_?ai_|(?:tdm|rights)_?reserv|disallow|_not_allowed_|forbid|"
    r"_(?:do_?not|dont|no|never)_(?:ai_)?(?:train|crawl|mine|mining|tdm)|"
    r"_(?:robots|robotstxt|robots_txt|crawl|crawling|ai|training)_(?:denied|blocked|refused)_"
)
_GRANTS = re.compile(
    r"allowed_|_allows?_(?:ai|train|crawl|robots|tdm|mining|use)|permitted_|_consent(?:s|ed)?_|"
    r"_opt(?:s|ed)?_?in_|_train_ai_|_ai_train(?:ing)?_|_ai_use_|_(?:can|may)_(?:train|crawl)_"
)
_RESERVES_BY_WORDS = RefusedKey(meaning=_OPT_OUT.meaning, neutral=(*_NO, "allow", "allowed"))
_DENIES_TRAINING = re.compile(
    r"\b(?:no|not|non|without|except|excluding|prohibit\w*|forbid\w*)\b[^.;]{0,60}"
    r"\b(?:ai|a\.i\.|machine[- ]learning|(?:model |llm )?training|tdm|(?:text|data)[ -](?:and[ -]data[ -])?mining)\b"
    r"|\bno-?ai\b",
    re.IGNORECASE,
)
_HOST_NAMES = ("domain", "url_domain", "source_domain", "host", "hostname", "site")
_HOST = re.compile(r"(?:[a-z0-9-]{1,63}\.)+[a-z]{2,63}(?::\d{1,5})?(?:[/?#]\S*)?", re.IGNORECASE)
ADDRESS = r"\s*[<(\[]?(?:(?:https?|ftp)://|//(?:[a-z0-9-]+\.)+[a-z]{2}|www\.[a-z0-9-]+\.)"
"""The beginning of a text that looks like a web address, in any case of its letters."""
_HOLDS_MORE = re.compile(
    r"opt|allow|robots|consent|tdm|train|no_?-?ai|headers|https?:", re.IGNORECASE
)
LOOKS_LIKE_URL = "looks_like_url"
"""Key of `FieldUse.facts` for fields that were not read, of rows without an address."""

KNOWN_NAMES = ROW_KEYS.read | ROW_KEYS.harmless | ROW_KEYS.refused.keys()


class FieldUse:
    """Counts of the fields of rows that were read, by their use, and of those that were not used.

    fields   what rows may have: those of a document, or of an example of alignment

    rows     objects read
    read     rows by field name, for each of the fields, and for `LOOKS_LIKE_URL`
    """

    def __init__(self, fields: Sequence[str] = FIELDS) -> None:
        self.rows = 0
        self.read: dict[str, Counter[str]] = {f: Counter() for f in (*fields, LOOKS_LIKE_URL)}
        self.unknown = UnknownKeys()
        self._names: dict[str, None] = {}

    def see(self, names: Iterable[str]) -> None:
        """Remember the first fields of the rows, for an error about one that none of them has."""
        for name in names:
            if len(self._names) < _MOST_NAMES or (is_read(name) and len(self._names) < 1000):
                self._names[name] = None

    def columns(self) -> str:
        """The first fields of the file, for an error."""
        return visible(", ".join(list(self._names)[:_MOST_NAMES]), 400) or "none"

    def like_url(self) -> str:
        """The field that most often looks like an address and is not read as one; "" if none."""
        return next(
            (visible(path, 100) for path, _ in self.read[LOOKS_LIKE_URL].most_common(1)), ""
        )

    def missing(self, names: NamedFields) -> dict[str, str]:
        """Configured names that no row has, by field; none without rows."""
        return {
            field: name
            for field, name in names.named().items()
            if self.rows and not self.read[field] and name not in self._names
        }

    def check(self, file: str, names: FieldNames) -> None:
        """Raise DataError for a configured field that no row of the file has."""
        for field, name in self.missing(names).items():
            raise DataError(
                f"no row of {file} has the field {name!r}",
                where=f"corpus.fields.{field}",
                fix=f"Name one of its fields: {self.columns()}",
            )

    def facts(self) -> dict[str, Any]:
        """The counts as JSON values: {"fields": {"url": {"metadata.url": 2}}, "unknown_keys": {…}}."""
        read = {
            field: dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:100])
            for field, counts in self.read.items()
            if counts
        }
        unknown = self.unknown.counts()
        return ({"fields": read} if read else {}) | ({"unknown_keys": unknown} if unknown else {})


def summed_fields(facts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of `FieldUse.facts` over files: {"fields": …, "unknown_keys": …}."""
    use = _summed(facts)
    return {
        "fields": {field: dict(counts) for field, counts in use.read.items() if counts},
        "unknown_keys": use.unknown.counts(),
    }


def _summed(facts: Iterable[Mapping[str, Any]]) -> FieldUse:
    use = FieldUse()
    for file in facts:
        for field, counts in file.get("fields", {}).items():
            use.read[field].update(counts)
        for key, count in file.get("unknown_keys", {}).items():
            use.unknown.add([key], count)
    return use


def field_lines(facts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for the terminal: fields read under other names than their own, and unknown keys."""
    use = _summed(facts)
    if like := use.read.pop(LOOKS_LIKE_URL):
        shown = ", ".join(f"{path} ({count:,})" for path, count in list(like.items())[:12])
        yield (
            f"Rows without an address have a field that looks like one: {shown}; "
            f"set corpus.fields.url={next(iter(like))}"
        )
    other = [
        f"{field} from {path} ({count:,})"
        for field, counts in use.read.items()
        for path, count in counts.items()
        if path not in (field, "license")
    ]
    if other:
        yield f"Fields read: {', '.join(other[:12])}{' …' if len(other) > 12 else ''}"
    if sentence := use.unknown.sentence("the inputs"):
        yield sentence


@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """A field name in lower case, without its path, its words joined by "_": sourceURL, opt-out."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name.rpartition(".")[2]).lower()


@functools.lru_cache(maxsize=4096)
def _refusal(name: str) -> RefusedKey | None:
    """The consent statement that a key stands for: by its listed name, else by the words in it."""
    key = canonical(name)
    if key in KNOWN_NAMES:
        return ROW_KEYS.refused.get(key)
    if _RESERVES.search(f"_{key}_"):
        return _RESERVES_BY_WORDS
    return _CONSENT if _GRANTS.search(f"_{key}_") else None


def _states_consent(path: str, value: Any) -> bool:
    """Whether a value is a flag of consent, and not the time or the address of one."""
    if _refusal(path) is None or canonical(path) in KNOWN_NAMES:
        return _refusal(path) is not None
    return (
        _plain(value) in (*_YES, *_NO, *_REFUSING)
        if isinstance(value, str | int | float)
        else False
    )


def _plain(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def is_known_container(name: str) -> bool:
    """Whether the values inside the field are read: `metadata`, `meta` and the like."""
    return canonical(name) in _CONTAINERS


def is_read(name: str) -> bool:
    """Whether the value of a field may change what is done with its row."""
    key = canonical(name)
    return key in ROW_KEYS.read or key in (*_HOST_NAMES, "id") or _refusal(name) is not None


def text_field(columns: list[str], names: FieldNames) -> str:
    """The column of a table from which the text is read, "" if there is none."""
    wanted = (names.text,) if names.text else _NAMES["text"]
    by_name = {canonical(column): column for column in columns if "." not in column}
    return names.text if names.text in columns else next(
        (by_name[name] for name in wanted if name in by_name), ""
    )  # fmt: skip


def record_of(
    place: Place, row: Any, names: FieldNames, line: bytes = b"", use: FieldUse | None = None
) -> InputRecord | UnreadableRecord:
    """The document of an object with named values, or the reason why there is none.

    line   from which it was read; identifies a row that is nested too deep to be written again
    use    counts the fields
    """
    use = use or FieldUse()
    try:
        if not isinstance(row, dict):
            raise _BadRowError("no_text", f"a {_kind(row)}, not an object with a text")
        return _document(place, row, names, use)
    except _BadRowError as bad:
        try:
            written = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str)
            data = written.encode("utf-8", "surrogatepass")
        except (RecursionError, TypeError):  # keys of a datatrove document may have any type
            data = line
        return UnreadableRecord(
            place=place,
            content_id=content_id("", data),
            reason=bad.reason,
            detail=bad.detail,
            size=len(data),
        )


class _BadRowError(UnusableError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, visible(detail, 500))


def _document(place: Place, row: dict[str, Any], names: FieldNames, use: FieldUse) -> InputRecord:
    flat: dict[str, Any] = {}
    for path, value in _flat(row):
        earlier = flat.setdefault(path, value)
        if earlier is not value and earlier != value:  # NaN is not equal to itself
            raise _BadRowError("bad_value", f"two values for {path}")
    for path, headers in [(p, v) for p, v in flat.items() if canonical(p) in _HEADERS]:
        for header, value in _header_pairs(path, headers) if headers is not None else ():
            if canonical(header) in _ADDRESSES:
                flat[f"{path}.{header}"] = value
    nested = [leaf for path, value in flat.items() for leaf in _nested(path, value)]
    by_name: dict[str, list[str]] = {}
    for path in flat:
        by_name.setdefault(canonical(path), []).append(path)
    use.rows += 1
    use.see(list(flat))
    use.unknown.add(_unknown(flat, names))
    read = {field: list(_values(field, row, flat, by_name, names)) for field in FIELDS}
    read["text"].sort(key=lambda named: _is_blank(named[1]))
    for field, values in read.items():
        if values:
            use.read[field][values[0][0]] += 1
    text = _text(read["text"], names, use)
    licences = list(_licences(read["licence"]))
    address = _address(read["url"], bool(names.url))
    like = set() if address.strip() else _like_addresses([*flat.items(), *nested])
    use.read[LOOKS_LIKE_URL].update(like)
    empty = [] if address.strip() else [path for path in flat if is_address_field(path, names)]
    fields = {
        "url": address,
        "licence": licences[0] if len(licences) == 1 else _all_licences(licences),
        **{
            field: _name(field, read[field], names, use) for field in ("source", "language", "date")
        },
    }
    for field, value in fields.items():
        if len(value) > LONGEST_FIELD:
            raise _BadRowError("field_too_long", f"{field} has over {LONGEST_FIELD} characters")
    content, url = whole_text(text).encode(), clean_field(fields["url"])
    return InputRecord(
        place=place,
        content_id=content_id(url, content),
        content=content,
        url=url,
        source=clean_field(fields["source"]),
        licence=clean_field(fields["licence"]),
        language=clean_field(fields["language"]),
        date=clean_field(fields["date"]),
        signals=Signals(headers=tuple(_signals([*flat.items(), *nested]))),
        address_field=clean_field(next(iter([*empty, *sorted(like)]), "")),
    )


def _flat(row: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values of a row by path: those inside `metadata` and the like as `metadata.url`."""
    for key, value in row.items():
        path = f"{above}{key}"
        inner = _mappings(value) if depth < _DEEPEST and is_known_container(path) else []
        if not inner:
            yield path, value
        for number, mapping in enumerate(inner):
            # Of a list of objects each has its own address.
            within = path if len(inner) == 1 else f"{path}.{number}"
            yield from _flat(mapping, f"{within}.", depth + 1)


def _nested(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values inside an object that is not read, by path, where opt-outs and headers may be."""
    if depth == 0 and canonical(path) in ROW_KEYS.read - set(_CONTAINERS):
        return
    if not isinstance(value, str | list | dict) or (
        isinstance(value, str) and not _HOLDS_MORE.search(value)
    ):
        return
    for mapping in _mappings(value) if depth < _DEEPEST else []:
        for key, inner in mapping.items():
            within = f"{path}.{key}"
            name = canonical(within)
            if name in _SIGNALS or (name in _HEADERS and _mappings(inner)):
                yield within, inner
                continue
            is_flag = isinstance(inner, int | float) and _refusal(within) is not None
            if is_flag or (isinstance(inner, str) and name not in _HEADERS):
                yield within, inner
            yield from _nested(within, inner, depth + 1)


def _mappings(value: Any) -> list[dict[str, Any]]:
    """The objects of a value: one, those of a list, also where they are written as a JSON string."""
    value = _parsed(value)
    mapping = as_mapping(value)
    if mapping is None and isinstance(value, list):
        return [entry for entry in value if isinstance(entry, dict)]
    return [] if mapping is None else [mapping]


def _parsed(value: Any) -> Any:
    """An object or a list that is written as a JSON string; another value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except (ValueError, RecursionError):
            return value
    return value


def _like_addresses(leaves: Iterable[tuple[str, Any]]) -> set[str]:
    """The fields that are not read as the address, and of which a value looks like one."""
    like = set()
    for path, value in leaves:
        if not may_hold_address(path):
            continue
        is_host = canonical(path) in _HOST_NAMES
        values = _parsed(value)
        for text in values if isinstance(values, list) else [value]:
            if isinstance(text, str) and (
                re.match(ADDRESS, text, re.IGNORECASE) or (is_host and _is_host(text))
            ):
                like.add(path)
    return like


def addresses_in(path: str, value: str) -> set[str]:
    """The fields of a value that is not read, itself or what its JSON holds, that look like addresses."""
    return _like_addresses([(path, value), *_nested(path, value)])


def may_hold_address(path: str) -> bool:
    """Whether a field that looks like an address may be that of the document."""
    name = canonical(path)
    is_read_otherwise = name in ROW_KEYS.read and name not in (*_NAMES["url"], "source")
    return not is_read_otherwise and path.partition(".")[0] != "media" and "licen" not in name


def is_address_field(path: str, names: FieldNames) -> bool:
    """Whether the address of a row is read from a field, or from an object that it is."""
    return canonical(path) in _NAMES["url"] or path == names.url or names.url.startswith(f"{path}.")


def as_mapping(value: Any) -> dict[str, Any] | None:
    """An object, the pairs of a map column, or an object written as a JSON string."""
    value = _parsed(value)
    if isinstance(value, list) and value and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in value
    ):  # fmt: skip
        return dict(value)
    return value if isinstance(value, dict) else None


def _unknown(flat: Mapping[str, Any], names: FieldNames) -> Iterator[str]:
    configured = {getattr(names, field).partition(".")[0] for field in FIELDS}
    for path, value in flat.items():
        if value is None or path.partition(".")[0] in configured - {""}:
            continue
        if canonical(path) not in KNOWN_NAMES and not _states_consent(path, value):
            yield path


def _values(
    field: str,
    row: Mapping[str, Any],
    flat: Mapping[str, Any],
    by_name: Mapping[str, list[str]],
    names: FieldNames,
) -> Iterator[tuple[str, Any]]:
    """Paths and values of a field, in order of precedence; null counts as absent."""
    configured = getattr(names, field)
    if configured:
        value = flat.get(configured, value_at(row, configured))
        for path in flat if value is None else ():
            if configured.startswith(f"{path}."):  # a table has flat paths at its top
                value = value_at(flat[path], configured.removeprefix(f"{path}."))
        if value is not None:
            yield configured, value
        return
    for name in _NAMES[field]:
        for path in by_name.get(name, ()):
            value = flat[path]
            if value is None or (field == "text" and "." in path):
                continue
            if (
                field != "url"
                or name in _ADDRESSES
                or _is_web_address(value)
                or (name in ("source_url", "page_url") and _is_host(value))
            ):
                yield path, value


def _is_web_address(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower().startswith(("http://", "https://"))


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and _HOST.fullmatch(value.strip()) is not None


def value_at(row: Any, path: str) -> Any:
    """The value of a field by its name or its path, None without one.

    A path leads inside objects, also those written as JSON, and the pairs of a map column.
    """
    values = as_mapping(row)
    if values is None or path in values:
        return None if values is None else values[path]
    first, _, rest = path.partition(".")
    return value_at(values.get(first), rest) if rest else None


def _text(values: list[tuple[str, Any]], names: FieldNames, use: FieldUse) -> str:
    """The text of a row; other texts are counted as not used.

    values   those that are not blank first
    """
    if not values:
        fix = "" if names.text else ": set corpus.fields.text to the one with the text"
        raise _BadRowError(
            "no_text", f"no {names.text or 'text'}; fields of the file: {use.columns()}{fix}"
        )
    path, text = values[0]
    if not isinstance(text, str):
        raise _BadRowError("no_text", f"{path} is a {_kind(text)}, not a string")
    use.unknown.add(
        f"{other} (another text)"
        for other, value in values[1:]
        if not _is_blank(value) and value != values[0][1]
    )
    return text


def _is_blank(value: Any) -> bool:
    return isinstance(value, str | bytes) and not value.strip()


def _address(values: list[tuple[str, Any]], is_configured: bool) -> str:
    for path, value in values:
        if not isinstance(value, str):
            # Without a URL it would be allowed without a consent check.
            raise _BadRowError("bad_url", f"{path} is a {_kind(value)}, not a string")
    given = [(path, value) for path, value in values if value.strip()]
    first = [(p, v) for p, v in given if canonical(p) in _ADDRESSES]
    if len({value.strip().rstrip("/") for _, value in first}) > 1:
        raise _BadRowError(
            "bad_url",
            f"{' and '.join(path for path, _ in first)} differ: set corpus.fields.url to one of them",
        )
    if not given:
        return ""
    path, url = given[0]
    # Of a bare host the consent can be asked, too.
    is_bare = (is_configured or canonical(path) not in _ADDRESSES) and _is_host(url)
    return f"https://{url.strip()}" if is_bare else url


def _licences(values: list[tuple[str, Any]]) -> Iterator[str]:
    """Yield each licence that a row names, once; all of them apply."""
    seen = set()
    for path, value in values:
        value = _parsed(value)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                part = next(
                    (part[k] for k in ("spdx_id", "spdx", "id", "url", "name") if part.get(k)), part
                )
            if not isinstance(part, str | None):
                raise _BadRowError("bad_value", f"{path} has a {_kind(part)}, not a licence")
            if part and part.strip() and part not in seen:
                seen.add(part)
                yield part


def _all_licences(licences: list[str]) -> str:
    return join_expressions(
        "AND", [spdx_expression(licence) or UNKNOWN_TERMS for licence in licences]
    )


def _name(field: str, values: list[tuple[str, Any]], names: FieldNames, use: FieldUse) -> str:
    """The first value that is a name or a date; others are counted as unknown."""
    for path, value in values:
        if field == "language" and isinstance(value, list) and value:
            value = value[0]  # HPLT: the most likely first
        if isinstance(value, str):
            if value.strip():
                return value
        elif isinstance(value, date):
            return value.isoformat()
        elif field == "date" and type(value) is int and 1000 <= value <= 9999:
            return str(value)
        elif getattr(names, field):
            raise _BadRowError("bad_value", f"{path} is a {_kind(value)}, not a string")
        else:
            use.unknown.add([f"{path} ({_kind(value)})"])
    return ""


def _signals(leaves: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """The opt-outs of a row as the headers that they came from, and its own fields."""
    for path, value in leaves:
        name = canonical(path)
        if value is None:
            continue
        if name == _CUT and value:
            raise _BadRowError("truncated_record", f"{path} = {value!r:.80}")
        if name in _HEADERS:
            for header, content in _header_pairs(path, value):
                yield header.strip().lower(), content
        elif name in _NAMES["licence"]:
            if _DENIES_TRAINING.search(
                value if isinstance(value, str) else str(value)[:LONGEST_FIELD]
            ):
                yield OPT_OUT_FIELD, visible(f"{path} = {value!r:.200} denies training", 300)
        elif name in _SIGNALS:
            for content in value if isinstance(value, list) else [value]:
                yield _SIGNALS[name], _signal_text(_SIGNALS[name], content)[:LONGEST_FIELD]
        elif (
            (refusal := _refusal(path))
            and _states_consent(path, value)
            and not refusal.is_neutral(_plain(value))
        ):
            yield OPT_OUT_FIELD, visible(f"{path} = {value!r:.80} {refusal.meaning}", 300)


def _signal_text(header: str, content: Any) -> str:
    """A signal as its header has it: {"train-ai": "n"} as train-ai=n, {"noai": true} as noai."""
    members = as_mapping(content)
    if members is None:
        return str(int(content)) if isinstance(content, bool) else str(content)
    if header == "x-robots-tag":
        return ", ".join(
            str(key) if value in (True, 1, "") else f"{key}: {value}"
            for key, value in members.items()
            if value is not None and value is not False
        )
    no, yes = ("no", "yes") if header == "content-signal" else ("n", "y")
    flags = {str(key): _plain(value) for key, value in members.items() if value is not None}
    return ", ".join(
        f"{key}={no if value in _NO else yes if value in _YES else value}"
        for key, value in flags.items()
    )


def _header_pairs(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Names and values of HTTP headers: an object, a list of pairs or objects, or the raw head."""
    if isinstance(value, str) and value.lstrip()[:1] not in ("{", "["):
        lines = (line.partition(":") for line in value.splitlines())
        yield from ((name, content.strip()) for name, colon, content in lines if colon)
        return
    pairs = as_mapping(value)
    if pairs is None and isinstance(value, list) and all(isinstance(v, dict) for v in value):
        pairs = {}
        for header in value:
            name = header.get("name", header.get("key"))
            pairs.setdefault(str(name), []).append(header.get("value"))
    if pairs is None:
        raise _BadRowError("bad_value", f"{path} is a {_kind(value)}, not HTTP headers")
    for name, content in pairs.items():
        for header_value in content if isinstance(content, list) else [content]:
            if header_value is not None:
                yield str(name), str(header_value)[:LONGEST_FIELD]


def _kind(value: Any) -> str:
    return {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}.get(
        type(value), "number" if isinstance(value, (int, float)) else type(value).__name__
    )
