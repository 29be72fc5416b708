"""Python for Symphony: a client of its HTTP interface, and programs in Python."""
