"""Lineage: how K and V of entries are computed, where the file does not say it.

    spans       spans (computations) and trails (the spans whose entries a file consists of)
    book        which tenant pays for lineage, and its bounds
    origins     one file's lineage
    planning    `plan`: what to compute so that absent entries become what they were
    packing     `pack` and `unpack`: trails as bytes, for the journal and for durable files

If each entry was computed from exactly those before it, tokens and positions say everything, and a
file has no lineage. Extract, append and trees make files whose entries have seen others, which the
file may have dropped. A *span* is one computation: its context, and the tokens that were computed
behind it. A *trail* says which spans' entries a file consists of.

    a = pred(0..99)               no lineage
    b = extract(a, 0..3, 80..99)  trail A[0:4, 80:100]    A: tokens 0..99 behind nothing
    pred(b, 5 tokens)             the same trail: the new entries have seen all of b before them
    c = extract(b, 4..28)         trail A[80:100] B[0:5]  B: 5 tokens behind A[0:4, 80:100]

A trail covers a file's first entries. The entries behind it are *linear*, and cost nothing.
"""
