"""What holds for every test: the suite says the same of the same tree, however busy the machine."""

import os

from hypothesis import HealthCheck, settings

# Whoever looks for new failures asks for other examples than last time: SYMPHONY_EXPLORE=1.
_EXPLORES = bool(os.environ.get("SYMPHONY_EXPLORE"))
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=not _EXPLORES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
