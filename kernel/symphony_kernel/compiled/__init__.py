"""The kernel's hot modules, compiled by mypyc: the same sources, in about half of the time.

`python -m symphony_kernel.compiled` compiles them once per machine and version of the sources, into
one library in the user's cache (`build`). Only the kernel's process uses it (`loading`), from its
first line on. Other processes, such as tests, import the interpreted modules. A library's name
contains a digest of its sources, so one of other sources is never found. `SYMPHONY_COMPILED=0`
disables it.
"""
