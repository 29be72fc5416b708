"""One model over several devices: each rank has a share of heads and MLP columns."""
