"""`python -m stamm` is `stamm`."""

import sys

from stamm.cli.main import main

sys.exit(main())
