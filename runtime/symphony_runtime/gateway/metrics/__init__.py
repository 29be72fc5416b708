"""Metrics for `/metrics`: runs and requests, the kernel, the disk, the server's processes."""
