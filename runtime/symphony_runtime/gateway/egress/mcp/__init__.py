"""MCP tools: `tools` of a tenant, each on its `server`, over HTTP or `stdio`."""
