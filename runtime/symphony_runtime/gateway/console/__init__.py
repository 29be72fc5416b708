"""The web console: its files, as the gateway serves them."""
