"""Tools as TypeScript-like declarations, the form in which the developer block states them.

The text equals that of the published Apertus template, its line breaks included; the template that
is exported (`template.jinja`) holds the same rules.

Source   swiss-ai/apertus_format, src/templates/chat_template.jinja
Checked  tests/unit/chat/test_template.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stamm.base.errors import DataError

_SIMPLE = {"number": "number", "integer": "number", "boolean": "boolean"}
_LONGEST_ITEM = 50
_DEEPEST = 32


def declare_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declarations of tools, one after the other."""
    return "\n".join(_declare(tool) for tool in tools)


def check_schema(spec: object, where: str, depth: int = 0) -> None:
    """Check that a JSON schema has the form that `declare_tools` reads; None is an empty one.

    where    the place of the schema, for the error

    Raises   DataError for a part of another type, and for schemas nested beyond 32 levels.
    """
    if spec is None:
        return
    if not isinstance(spec, Mapping) or depth > _DEEPEST:
        raise DataError(
            f"{where} {'is nested too deeply' if depth > _DEEPEST else 'is not an object'}"
        )
    properties = spec.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise DataError(f"{where}: properties is not an object")
    for key in ("required", "enum", "oneOf"):
        value = spec.get(key) or ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise DataError(f"{where}: {key} is not a list")
    try:
        json.dumps(spec.get("default"))
    except (TypeError, ValueError, RecursionError):
        raise DataError(f"{where}: default is not JSON") from None
    inner = [*properties.items(), *(("oneOf", schema) for schema in spec.get("oneOf") or ())]
    for name, schema in inner:
        if schema is None:
            raise DataError(f"{where}: {name} is not an object")
        check_schema(schema, f"{where}: {name}", depth + 1)
    check_schema(spec.get("items") or None, f"{where}: items", depth + 1)


def _declare(tool: Mapping[str, Any]) -> str:
    head = f"// {tool.get('description', '')}\ntype {tool['name']} = "
    parameters = tool.get("parameters") or {}
    properties = parameters.get("properties") or {}
    if not properties:
        return head + "() => any;"
    required = parameters.get("required") or ()
    lines = [_parameter(name, spec, name in required) for name, spec in properties.items()]
    return head + "(_: {\n" + ",\n".join(lines) + "\n}) => any;"


def _parameter(name: str, spec: Mapping[str, Any], required: bool) -> str:
    comment = f"// {spec['description']}\n" if spec.get("description") else ""
    text = f"{comment}{name}{'' if required else '?'}: {typescript_type(spec)}"
    if "default" in spec:
        if spec.get("enum"):
            text += f", // default: {spec['default']}"
        elif spec.get("oneOf"):
            text += f"// default: {spec['default']}"
        else:
            text += f", // default: {_json(spec['default'])}"
    return text


def typescript_type(spec: Mapping[str, Any]) -> str:
    """The TypeScript-like type of one JSON schema."""
    kind = spec.get("type")
    nullable = " | null" if spec.get("nullable") else ""
    if kind == "array":
        return _array(spec) + nullable
    if isinstance(kind, Sequence) and not isinstance(kind, str) and kind:
        return " | ".join(map(str, kind))
    if spec.get("oneOf"):
        return _one_of(spec["oneOf"])
    if kind == "string":
        if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        return "string" + nullable
    if kind == "object":
        return _object(spec)
    return _SIMPLE.get(str(kind), "any")


def _array(spec: Mapping[str, Any]) -> str:
    items = spec.get("items")
    if not items:
        return "any[]"
    if str(items.get("type")) in ("string", *_SIMPLE):
        return _SIMPLE.get(items["type"], "string") + "[]"
    inner = typescript_type(items)
    return "any[]" if inner == "object | object" or len(inner) > _LONGEST_ITEM else inner + "[]"


def _one_of(variants: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for variant in variants:
        text = typescript_type(variant)
        if variant.get("description"):
            text += f"// {variant['description']}"
        if "default" in variant:
            text += " " * 20 + f"// default: {_json(variant['default'])}"
        texts.append(text)
    return " | \n".join(texts)


def _object(spec: Mapping[str, Any]) -> str:
    properties = spec.get("properties")
    if not properties:
        return "object"
    required = spec.get("required") or ()
    fields = [
        f"{name}{'' if name in required else '?'}: \n" + " " * 16 + typescript_type(inner)
        for name, inner in properties.items()
    ]
    return "{\n" + ", ".join(fields) + "}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
