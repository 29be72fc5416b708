"""Where a run is placed when there are several nodes: a policy without I/O, with injected time.

    rendezvous   the stable order of the nodes for a key
    keys         keys of KV: names, and prefixes of tokens
    directory    which node holds which KV, with expiry and bounds
    loads        the live nodes, and the work that waits at each
    placement    the score, and the choice

No server uses it yet: `benchmarks/cluster` drives it in virtual time. It has nothing to do with
`gateway/cluster`, the gateways of one database.
"""
