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

# All that is asked for is on this machine: no client goes through a proxy that others need.
for _name in ("http_proxy", "https_proxy", "all_proxy"):
    for _spelling in (_name, _name.upper()):
        os.environ.pop(_spelling, None)
