"""What tests of the kernel share: a kernel in this process, its peers, oracles."""
