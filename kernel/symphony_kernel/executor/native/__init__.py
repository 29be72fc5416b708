"""CPU kernels in C++: a whole step of the network in one call.

   source/ has the C++:
   types.h team.*        numbers, and the threads that compute a step
   product* attention*   matrix products on packed weights; attention on the pages
   decoder.*             a decoder's step, layer after layer
   sampling.*            from logits to tokens
   build.py library.py   compile them once for a machine; give them their Python types

They are compiled for the machine they run on, at their first use or by `python -m
symphony_kernel.executor.native`. Where that is impossible, torch computes everything.
"""
