"""Measure what one tenant keeps while other tenants attack: see `benchmarks.neighbour.__main__`."""
