"""Rendering of templates with autoescape. One file, no network; a script only where its hash is declared."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from stamm.base.errors import ConfigError
from stamm.pages import theme
from stamm.pages.figure import Figure
from stamm.pages.formatting import ABSENT, fixed
from stamm.pages.text import excerpt, one_line

_LONGEST_TEXT = 20_000


def fill(
    template: str, context: Mapping[str, Any], package: str, *, excerpt_characters: int = 600
) -> Markup:
    """The page or section that `template` makes of `context`.

    Every value is escaped by the template engine but those that are `Markup` already. Both themes
    and the text for missing results are added to the context.

    package              the package whose folder `templates` holds it, beside those of this one
    excerpt_characters   how much of a quotation is shown
    """
    filled = _environment(package, excerpt_characters).get_template(template)
    return Markup(filled.render(context))


@dataclass(frozen=True)
class InlineScript:
    """The one script of a page.

    Raises   ConfigError for a text that would end its element
    """

    text: Markup

    def __post_init__(self) -> None:
        if re.search(r"</script|<!--", self.text, re.IGNORECASE):
            raise ConfigError("the script of a page contains </script or <!--, which would end it")

    @property
    def policy(self) -> str:
        """The directive of a Content Security Policy that allows this script, by the hash of its text."""
        digest = hashlib.sha256(self.text.encode()).digest()
        return f"script-src 'sha256-{base64.b64encode(digest).decode()}'"


def script_file(package: str, name: str) -> str:
    """The text of a script in the folder `templates` of a package."""
    return (resources.files(package) / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment(package: str, excerpt_characters: int) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package), jinja2.PackageLoader("stamm.pages")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        {
            "fixed": fixed,
            "quote": lambda text: excerpt(text, excerpt_characters),
            "line": lambda text, limit=120: one_line(text, limit),
            "drawing": _drawing,
        }
    )
    environment.globals.update(
        {
            "absent": ABSENT,
            "light": Markup(theme.variables(theme.LIGHT)),
            "dark": Markup(theme.variables(theme.DARK)),
        }
    )
    return environment


def _visible(value: Any) -> Any:
    """Text of a template expression before escaping: control characters become visible escapes."""
    return excerpt(value, _LONGEST_TEXT) if type(value) is str else value


def _drawing(figure: Figure) -> Markup:
    return Markup(figure.svg)  # drawn by stamm.pages.svg_figure, which escapes every label
