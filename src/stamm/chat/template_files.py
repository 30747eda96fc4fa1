"""The chat template of a tokenizer folder: its file, or its entry in tokenizer_config.json.

Checked  tests/unit/models/test_hf_chat_format.py, tests/unit/export/test_chat_export.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stamm.base.errors import DataError
from stamm.base.files import read_json
from stamm.base.receipts import check_file

TEMPLATE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_LARGEST = 1 << 20  # characters of a template


def folder_template(folder: Path) -> str:
    """The chat template of a folder, "" when it has none; a file counts before the configuration.

    Raises   DataError when a file cannot be read, or a template is not text or too long.
    """
    path = folder / TEMPLATE
    if path.is_file():
        check_file(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
    else:
        config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        template = config.get("chat_template") if isinstance(config, dict) else None
        if isinstance(template, list):  # several by name
            named = {
                entry.get("name"): entry.get("template")
                for entry in template
                if isinstance(entry, dict)
            }
            template = named.get("default")
        if not isinstance(template, str | None):
            raise DataError(f"chat_template in {folder / CONFIG} is not text")
        text = template or ""
    if len(text) > _LARGEST:
        raise DataError(f"the chat template of {folder} has {len(text)} characters")
    return text


def as_trained(template: str) -> str:
    """A template without today's date: it writes its own default, as training and sampling do.

    transformers and llama.cpp define `strftime_now`; under another name it is undefined to them.
    """
    return re.sub(r"\bstrftime_now\b", "no_strftime_now", template)


def config_as_trained(config: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json with its templates `as_trained`."""
    template = config.get("chat_template")
    if isinstance(template, str):
        return {**config, "chat_template": as_trained(template)}
    if isinstance(template, list):
        entries = [
            {**entry, "template": as_trained(str(entry["template"]))}
            if isinstance(entry, dict) and "template" in entry
            else entry
            for entry in template
        ]
        return {**config, "chat_template": entries}
    return dict(config)
