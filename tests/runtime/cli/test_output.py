"""What commands show on a terminal."""

from argparse import Namespace

import pytest
from symphony_runtime.cli.output import print_listing


def test_listing_shows_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The path of a request without a key stands in the audit log, which an operator looks at.
    items = [{"target": "/v1/\x1b]0;owned\x07", "detail": "two\nlines\x9b2J\u202e\ud800"}]
    print_listing(Namespace(json=False), items, {"WHERE": "target", "WORDS": "detail"})
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["WHERE", "WORDS"]
    assert row.split() == ["/v1/?]0;owned?", "two?lines?2J??"]
