"""Commands on a terminal of their own."""

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence


def _heed_interrupts() -> None:
    """Undo what a suite in the background of a shell would hand on: it ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    until: Callable[[bytes], bool] | None = None,
    number: int = signal.SIGINT,
    typed: bytes = b"",
) -> tuple[int, bytes]:
    """Run a command to its end; return its exit code and all that it has shown.

    When `until` holds of what it has shown it is sent a signal. `typed` is in its input.
    """
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=dict(environment),
        start_new_session=True, preexec_fn=_heed_interrupts,
    ) as running:  # fmt: skip
        os.close(terminal)
        os.write(screen, typed)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends that its last process has closed
            while piece := os.read(screen, 1 << 16):
                shown += piece
                if until is not None and until(shown):
                    running.send_signal(number)
                    until = None
    os.close(screen)
    return running.returncode, shown
