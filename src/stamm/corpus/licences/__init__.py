"""Licences of pages and repositories: detection as SPDX expressions, and a policy for them."""
