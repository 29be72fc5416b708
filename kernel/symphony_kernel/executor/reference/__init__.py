"""The network in plain torch: correct on any device, the oracle of the fast paths."""
