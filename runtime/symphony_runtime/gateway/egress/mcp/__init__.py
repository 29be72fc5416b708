"""MCP tools: `tools` of a tenant, each called through its `server`, over HTTP or `stdio`."""
