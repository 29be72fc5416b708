"""A fuzzer of everything that strangers can reach: calls, frames of a worker, modules.

    python -m tests.fuzz --calls 1000000 --seed 1            or: make fuzz CALLS=1000000 SEED=1

Each *case* has a number of its own, from which all of it follows (`Random(f"{seed}/{kind}/{n}")`).
A case that finds something is made smaller and told with the command that plays it again.
"""
