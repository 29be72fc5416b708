"""Thousands of simulated nodes under a virtual clock, with the policies that place runs on them."""
