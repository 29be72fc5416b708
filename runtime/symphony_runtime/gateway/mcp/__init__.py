"""The route `/mcp`: a tenant's named programs are the tools of an MCP server.

    messages   JSON-RPC and the versions of the protocol
    tools      a program as a tool: its schemas, its input, its result
    calls      a run for a call, followed to its end
    handlers   the Streamable HTTP transport: one message a request, no state between requests
    route      loads all of these at the first message

The types and the rules of each version are those of the package `mcp`. Its transport is not used:
it parses bodies of any cost and needs another web framework.
"""
