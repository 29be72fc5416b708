"""Log lines: untrusted text stays within one line and cannot control a terminal."""

import io
import logging
import subprocess
import sys

from symphony_kernel.platform.log_format import LineFormatter, printable

FORGED = "/v1/runs/x\nERROR symphony: made up\r\x1b[2J\u2028\u202e\x85end"


def logged(path: str, error: BaseException | None = None) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    record = logging.LogRecord("n", logging.ERROR, "", 0, "GET %s failed", (path,), None)
    if error is not None:
        record.exc_info = (type(error), error, None)
    handler.emit(record)
    return out.getvalue()


def test_record_with_untrusted_text_is_one_line() -> None:
    assert logged("/v1/ü b") == "ERROR n: GET /v1/ü b failed\n"
    words = "made up\\r\\x1b[2J\\u2028\\u202e\\x85end"
    assert logged(FORGED) == f"ERROR n: GET /v1/runs/x\\nERROR symphony: {words} failed\n"
    assert printable("\udc80") == "\\udc80"


def test_exception_with_untrusted_text_looks_like_no_record() -> None:
    first, *below = logged("x", ValueError(FORGED)).splitlines()
    assert first == "ERROR n: GET x failed"
    forged = "  ERROR symphony: made up\\r\\x1b[2J\\u2028\\u202e\\x85end"
    assert below == ["  ValueError: /v1/runs/x", forged]


def test_process_that_logs_to_stderr_escapes_lines() -> None:
    program = (
        "import logging; from symphony_kernel.platform.log_format import log_to_stderr;"
        " log_to_stderr('WARNING', '%(message)s'); logging.info('no'); logging.warning('a\\nb')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert ended.stderr == b"a\\nb\n"
