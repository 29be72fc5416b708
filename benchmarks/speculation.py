"""What drafts save and cost: completions with and without them, on two real servers in turns.

    python -m benchmarks.speculation                       the 135m shape with random weights
    python -m benchmarks.speculation --model tiny --rounds 10 --json figures.json

Both servers serve the same model, one with `--draft-tokens N`, one with 0. While one is measured
the other is stopped (SIGSTOP). Each round asks both the same, the first one in turn:

    repeating   greedy: random weights soon repeat themselves, so nearly all drafts are right. That
                flatters: it is the most that drafts can save
    edit        a text is to be written again, with some tokens changed. The weights are random and
                would not do it, so a biased draw leads them: see `edited`
    plain       drawn at a temperature at which no three tokens come twice: what drafts cost where
                there are none
    mixed       of the streams, half are `repeating` and half `plain`: what drafts cost others

Each runs with one stream and with 16. Told are the median over the rounds of the time without
drafts over the time with them (above 1: drafts are faster), the least and the most, and the tokens
that were drafted and accepted. Of `mixed` it is the time of the plain half. Greedy and seeded texts
of both servers are compared; how many differ is told. With the native kernels none does.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.checkpoints import SHAPES, make_checkpoint

ROOT = Path(__file__).parents[1]
_START_SECONDS_MAX = 180
_SETTLED_SECONDS = 5.0  # machine code of programs is compiled behind the start
_WORKLOADS = ("repeating", "edit", "plain", "mixed")
_COUNTERS = re.compile(r"^symphony:draft_tokens(_accepted)?_total(?:\{[^}]*\})? (\S+)$", re.M)
_VOCABULARY = range(300, 1_300)  # of the prompts: no special tokens
Json = dict[str, Any]
