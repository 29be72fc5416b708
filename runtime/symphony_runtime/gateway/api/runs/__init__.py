"""Lists of runs, the stream of their changes, and what is kept of each besides its events."""
