"""How a kernel's process is set, as a process of its own says it."""

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
told = [taken, slice_seconds(), found[0], gc.get_freeze_count(), switches]
print(json.dumps(told))
"""


def test_a_process_and_its_threads_have_short_turns_and_keep_what_they_loaded() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, timeout=60
    ).stdout
    taken, own, threads, frozen, (usual, switch) = json.loads(told)
    assert frozen > 1_000
    assert switch < usual
    assert threads == own
    if taken:  # the system knows of turns' lengths
        assert own < 0.001
