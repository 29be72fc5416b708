"""Where a server's operator reads what its roles say."""

from collections.abc import Callable

from symphony_kernel.platform.log_format import printable

_BAR_WIDTH = 30  # characters


class Console:
    """Where the operator reads: progress on one line of a terminal, plain lines elsewhere."""

    def __init__(self, write: Callable[[str], object], *, terminal: bool) -> None:
        self._write = write
        self._terminal = terminal
        self._shown: tuple[str, str, int] | None = None
        self._unfinished = False

    def line(self, role: str, words: str) -> None:
        """Show one line of a role, whatever it holds."""
        self._end_progress()
        self._write(f"{role}: {printable(words)}\n")

    def say(self, words: str) -> None:
        """Show a line of our own."""
        self._end_progress()
        self._write(f"{words}\n")

    def progress(self, role: str, what: str, share: object) -> None:
        """Show how far a role is; elsewhere than on a terminal once for each quarter."""
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
