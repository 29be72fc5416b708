"""The tools of this project: an MCP server, which Symphony starts (see symphony.toml)."""

from mcp.server.mcpserver import MCPServer

NOTES = {
    "lys": "The Lys rises in Lisbourg and is 202 km long.",
    "ghent": "Ghent is a city in Flanders, where the Lys meets the Scheldt.",
}

server = MCPServer("project")


@server.tool()
def search(query: str) -> str:
    """Return the notes that have a word of the query."""
    words = query.lower().split()
    found = [note for name, note in NOTES.items() if name in words]
    return " ".join(found) or "Nothing is known of it."


if __name__ == "__main__":
    server.run()
