"""Peers of the kernel: the socket to which they connect, and the kernel's end of their links.

Unix socket -> server (Hello, secrets, sessions) -> peers (Port, WorkerPort) -> kernel
"""
