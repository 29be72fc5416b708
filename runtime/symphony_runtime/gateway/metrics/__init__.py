"""Metrics for `/metrics`: runs, requests, kernel, disk and processes."""
