"""Pages: the pool of 16-entry pages, and the prefix cache.

pool           pages and their frames, with counts of references
prefix_cache   pages that programs offered, found by their tokens, per tenant
"""
