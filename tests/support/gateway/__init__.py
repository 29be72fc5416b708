"""What tests of the gateway share: a whole system in one process, databases, servers."""
