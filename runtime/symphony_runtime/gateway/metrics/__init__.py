"""Figures for `/metrics`: of runs and requests, the kernel, the disk, the server's processes."""
