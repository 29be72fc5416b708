"""Host calls: how a guest's call crosses from its fiber to the worker.

compiled_calls   in C: `crossing.c`, compiled on this machine (`build`, `library`)
ctypes_calls     the same through ctypes, where it is not compiled; several times slower
"""
