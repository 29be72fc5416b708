"""A run's trace as Chrome trace events, which Perfetto and the console show.

events    the whole picture; picture: its tracks and spans
preds     preds with their waits and steps, their tokens, and what a mask forbade
waits     what an instance's preds did while it waited
"""
