"""One model over several devices: each rank has a share of the heads and of the middle layers."""
