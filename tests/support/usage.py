"""What a run has used."""

from symphony.client.views import Run, RunResult, RunUsage


def used(run: Run | RunResult) -> RunUsage:
    """Return the usage of a run that has ended."""
    assert run["usage"] is not None, run
    return run["usage"]
