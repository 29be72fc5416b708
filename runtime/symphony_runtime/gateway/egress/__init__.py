"""Egress: HTTP requests and calls of MCP tools by programs.

    worker ── Ask "tool", "http", "tools" ──> calls ──> mcp/ ───> an MCP server
                                                └─────> http ───> a server on the network

    addresses, resolver   which addresses may be reached; lookups of host names
    vault, injection      a tenant's secrets, and headers that carry them

Only the gateway has a network. It makes each call once: a failure is reported, never retried.
"""
