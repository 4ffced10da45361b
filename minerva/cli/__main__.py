"""Run the command line with `python -m minerva.cli`."""

import sys

from minerva.cli import main

sys.exit(main())
