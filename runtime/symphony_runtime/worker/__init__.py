"""The worker: runs LIPs as fibers on one event loop, and knows nothing it could give away."""
