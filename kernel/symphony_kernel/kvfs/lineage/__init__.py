"""Lineage: how K and V of a file's entries come about where the file alone does not say it.

    spans       spans (computations) and trails (of which spans' entries a file consists)
    book        who pays for them, and what is done past a bound
    origins     what one file knows of itself
    planning    `plan`: what to compute so that absent entries come to be what they were
    packing     `pack` and `unpack`: trails as bytes, for the journal and for durable files

Where each entry was computed from exactly those before it, tokens and positions say everything, and
a file has no lineage. Extract, append and trees make files of which that is not true: their entries
have seen others, which the file may have dropped. A *span* is one computation: its context, and the
tokens that were computed behind it. A *trail* says of which spans' entries a file consists.

    a = pred(0..99)               no lineage
    b = extract(a, 0..3, 80..99)  trail A[0:4, 80:100]    A: tokens 0..99 behind nothing
    pred(b, 5 tokens)             the same trail: what comes behind it saw all of b before it
    c = extract(b, 4..28)         trail A[80:100] B[0:5]  B: 5 tokens behind A[0:4, 80:100]

A trail covers a file's first entries; those behind it are *linear* on top, and cost nothing.
"""
