"""Settings of the whole suite.

The examples that hypothesis tries are derived from each test, so that the same commit always passes or always fails.
To look for new ones: HYPOTHESIS_PROFILE=explore pytest tests/laws tests/strategies
"""

import os

from hypothesis import settings

settings.register_profile("default", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
