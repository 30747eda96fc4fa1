"""The API key of an endpoint, read from an environment variable that the configuration names.

The key is sent in a header to the configured address and is written nowhere: not to files, messages or
the log. It changes no result.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from stamm.align.judge.judge_config import Connection
from stamm.base.errors import ConfigError


def api_key(connection: Connection) -> str:
    """The key; "" when the configuration names no variable.

    Raises   ConfigError when the variable is not set, or the key would be sent unencrypted to
             another machine
    """
    name = connection.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            f"the environment variable {name} is not set",
            where="judge.connection.api_key_env",
            fix=f"Export {name}, or leave judge.connection.api_key_env out",
        )
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{name} holds characters that no API key has (value not shown)")
    parts = urlsplit(connection.base_url)
    if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        raise ConfigError(
            f"{connection.base_url} is not encrypted: the API key would be readable on the way",
            where="judge.connection.base_url",
            fix="Use https, or leave judge.connection.api_key_env out",
        )
    return key


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
