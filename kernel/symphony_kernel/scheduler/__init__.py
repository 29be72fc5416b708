"""The scheduler: requests come in, steps go to the device, results go back.

step_loop -> scheduler -> batcher (what is in a step) -> admission (frames for it)
                 |            `--> fairness (in which order)
                 `--> lookahead, prediction (steps formed in advance), anticipation (short waits)

admission, recompute   which requests have frames when there are too few for all metrics, trace
what is counted; when each request was computed
"""
