"""Named KV files and prefixes over HTTP: `routes` lists the routes."""
