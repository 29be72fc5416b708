"""A rank's process: `python -m symphony_kernel.executor.parallel`, see `ranks`."""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.parallel.calls import pack, receive
from symphony_kernel.executor.parallel.ranks import Share, refuse


def main() -> int:
    """Run a rank until rank 0 ends; return 1 if it fails, 2 if it cannot start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 handles a terminal's Ctrl-C
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    share = Share(**json.loads(line))
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"kernel: rank {share.rank}: %(message)s"
    )
    calls: SimpleQueue[list[Any]] = SimpleQueue()
    threading.Thread(target=_read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    # What libraries print must not get between the replies.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        return _run(share, calls, replies)


def _read_calls(stream: BinaryIO, calls: "SimpleQueue[list[Any]]") -> None:
    """Queue rank 0's calls; exit at their end, even if the rank waits for the others."""
    while (call := receive(stream)) is not None:
        calls.put(call)
    os._exit(0)


def _run(share: Share, calls: "SimpleQueue[list[Any]]", replies: BinaryIO) -> int:
    import torch

    from symphony_kernel.executor.parallel.group import Group
    from symphony_kernel.executor.parallel.network import execute_call
    from symphony_kernel.executor.parallel.rank_network import device_of, load_share

    def reply(data: bytes) -> None:
        replies.write(data)
        replies.flush()

    if share.threads is not None:
        torch.set_num_threads(share.threads)
    group = Group(share.ranks)
    try:
        network = load_share(share, group)
    except (CheckpointError, MemoryError) as error:
        reply(refuse(error))
        return 2
    reply(pack(True, None))
    with torch.inference_mode():
        while True:
            call = calls.get()
            if call[0] == "join":
                group.join(Path(share.meeting), share.rank, device_of(share))
                continue
            try:
                answer = execute_call(network, call)
            except MemoryError as error:
                if call[0] != "open_host":  # otherwise rank 0 waits in a reduction
                    raise
                answer = refuse(error)
            if answer is not None:
                reply(answer)


if __name__ == "__main__":
    sys.exit(main())
