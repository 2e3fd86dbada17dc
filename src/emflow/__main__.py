"""`python -m emflow` is the command line."""

import sys

from emflow.cli import main

sys.exit(main())
