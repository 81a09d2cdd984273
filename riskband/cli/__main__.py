"""``python -m riskband.cli``: the command `riskband`."""

import sys

from riskband.cli import main

sys.exit(main())
