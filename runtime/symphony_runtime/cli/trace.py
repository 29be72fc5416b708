"""`symphony trace`: what a run did and when, in a file that Perfetto and chrome://tracing show."""

import json
import sys
from pathlib import Path

from symphony_runtime.client import JsonObject


def write(trace: JsonObject, output: Path | None) -> None:
    """Write a trace to a file, or to stdout.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(trace, ensure_ascii=False, separators=(",", ":")) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    output.write_text(text, encoding="utf-8")
    spans = sum(event["ph"] == "X" for event in trace["traceEvents"])
    sys.stderr.write(f"{output}: {spans} spans; https://ui.perfetto.dev shows them\n")
