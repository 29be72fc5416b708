"""Peers of the kernel: the socket on which they come, and the kernel's end of their links.

Unix socket -> server (Hello, secrets, sessions) -> peers (GatewayPort, WorkerPort) -> kernel
"""
