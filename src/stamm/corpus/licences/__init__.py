"""Licences of pages and repositories: read from what they say, as SPDX expressions, and judged."""
