"""Tools of MCP servers: `tools` of a tenant, each by its `server`, over HTTP or `stdio`."""
