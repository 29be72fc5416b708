"""What brings the kernel back after a kill -9, with the very state that its peers believe in."""
