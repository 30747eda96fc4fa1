"""Rendering of templates with autoescape. One file, no script, no network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

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
