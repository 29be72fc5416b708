"""Calls of programs to the outside: tools of MCP servers, and HTTP requests.

    worker ── Ask "tool", "http", "tools" ──> calls ──> tools ──> tool_server ──> an MCP server
                                                └─────> web ────> a server on the network

The gateway alone has a network. It makes each call once: what fails is told, never tried again.
"""
