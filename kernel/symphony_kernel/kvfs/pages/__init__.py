"""Pages: the pool of 16-token pages, block tables, and the prefix cache.

pool           pages and the frames that they lie in, with counts of references
block_table    a file's table of pages
prefix_cache   pages that programs offered, found again by their tokens, per tenant
"""
