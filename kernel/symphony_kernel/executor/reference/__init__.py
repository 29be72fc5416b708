"""The network in plain torch: correct on any device, and what the fast paths are compared with."""
