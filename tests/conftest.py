"""What holds for every test: the suite says the same of the same tree, however busy the machine."""

import os

from hypothesis import settings

# Whoever looks for new failures asks for other examples than last time: SYMPHONY_EXPLORE=1.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("explore" if os.environ.get("SYMPHONY_EXPLORE") else "suite")
