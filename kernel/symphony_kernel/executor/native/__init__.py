"""The CPU's own kernels: a whole step of the network in one call, in C++.

    source/ has the C++:
    types.h team.*        numbers, and the threads that compute a step
    product.* attention*  matrix products on packed weights; attention on the pages
    decoder.*             a decoder's step, layer after layer
    sampling.*            from logits to tokens
    build.py library.py   compiles them once for a machine, and gives them their Python types

They are compiled for the machine they run on, when they are first used or by
`python -m symphony_kernel.executor.native`. Where they cannot be, torch computes everything.
"""
