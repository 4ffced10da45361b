"""`python -m minerva.cli` is `minerva`."""

import sys

from minerva.cli import main

sys.exit(main())
