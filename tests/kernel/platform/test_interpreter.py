"""The interpreter's settings of a kernel, read in a process of its own."""

import json
import subprocess
import sys

_PROGRAM = """
import gc, json, sys, threading
from symphony_kernel.platform.interpreter import settle, take_short_turns
from symphony_kernel.platform.sched_slice import slice_seconds

usual = sys.getswitchinterval()
taken = take_short_turns()
settle()
found = []
thread = threading.Thread(target=lambda: found.append(slice_seconds()))
thread.start()
thread.join()
switches = [usual, sys.getswitchinterval()]
print(json.dumps([taken, slice_seconds(), found[0], gc.get_freeze_count(), switches]))
"""


def test_interpreter_has_short_slices_and_frozen_objects() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    taken, own, threads, frozen, (usual, switch) = json.loads(printed)
    assert frozen > 1_000
    assert switch < usual
    assert threads == own
    if taken:  # the system supports time slices
        assert own < 0.001
