"""`python -m stamm` is `stamm`."""

from stamm.cli.main import entry

entry()
