"""The event loop of gateway and workers.

uvloop does in C what asyncio does in Python for each read and write: a fifth of the cost of a
worker's message. Its timers count whole milliseconds, and its time stands still during a turn. The
kernel's loop is the same with finer timers.
"""

import uvloop

EARLY_MS = 1  # a timer may be early by at most so much
run = uvloop.run
