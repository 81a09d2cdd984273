"""``python -m riskband``: the command `riskband`."""

import sys

from riskband.cli import main

sys.exit(main())
