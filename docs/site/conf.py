"""Sphinx configuration of the documentation site; `make docs` builds it."""

project = "stamm"
html_title = "stamm"
author = "the stamm authors"
project_copyright = "the stamm authors"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
# Reports and figures of the log are files beside the pages, copied as they are.
suppress_warnings = ["myst.xref_missing"]
