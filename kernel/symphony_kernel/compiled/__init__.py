"""The kernel's hot modules, compiled by mypyc: the same sources, at about half of the time.

`python -m symphony_kernel.compiled` compiles them once for a machine and for these sources, into
one library in the user's cache (`build`). The kernel's process alone uses it (`loading`), from its
first line on; whoever imports the package otherwise, as tests do, gets the modules as they are
written. A library that was made of other sources is never found: its name follows from theirs.
`SYMPHONY_COMPILED=0` leaves it alone.
"""
