"""The operator's output: messages and progress of the roles."""

from collections.abc import Callable

from symphony_kernel.platform.log_format import printable

_BAR_WIDTH = 30  # characters


class Console:
    """Shows progress on one line of a terminal, and plain lines otherwise."""

    def __init__(self, write: Callable[[str], object], *, terminal: bool) -> None:
        self._write = write
        self._terminal = terminal
        self._shown: tuple[str, str, int] | None = None
        self._unfinished = False

    def line(self, role: str, text: str) -> None:
        """Show a line of a role, with unprintable characters replaced."""
        self._end_progress()
        self._write(f"{role}: {printable(text)}\n")

    def say(self, text: str) -> None:
        """Show a line of the supervisor."""
        self._end_progress()
        self._write(f"{text}\n")

    def progress(self, role: str, what: str, share: object) -> None:
        """Show a role's progress; without a terminal, once for each quarter."""
        percent = int(100 * share) if isinstance(share, (int, float)) else 0
        shown = (role, what, percent if self._terminal else percent // 25)
        if shown == self._shown:
            return
        self._shown, what = shown, printable(what)
        if self._terminal:
            bar = "#" * (percent * _BAR_WIDTH // 100)
            self._write(f"\r\x1b[K{role}: {what} [{bar:{_BAR_WIDTH}}] {percent:3d} %")
            self._unfinished = True
        else:
            self._write(f"{role}: {what} {percent} %\n")

    def _end_progress(self) -> None:
        if self._unfinished:
            self._write("\r\x1b[K")
            self._unfinished = False
