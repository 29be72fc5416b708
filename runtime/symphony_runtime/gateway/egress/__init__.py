"""Calls of programs to the outside: tools of MCP servers, and HTTP requests.

    worker ── Ask "tool", "http", "tools" ──> calls ──> mcp/ ───> an MCP server
                                                └─────> http ───> a server on the network

    addresses, resolver   which addresses may be reached; names of hosts
    vault, injection      a tenant's secrets, and headers that carry them

The gateway alone has a network. It makes each call once: a failure is reported, never retried.
"""
