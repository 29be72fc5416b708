"""Attached programs: Python in this process whose system calls a server makes.

place        which server, and with which key
connection   the WebSocket
calls        calls under way, batched by passes of the event loop
errors       an exception for each errno
run          `attach`, and the run that the calls of a task belong to
sync         the same for code that is not async
"""
