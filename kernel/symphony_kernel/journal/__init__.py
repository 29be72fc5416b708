"""The journal: restores the kernel after a kill -9, in the state that its peers know.

recorder   records each frame and each nondeterministic event, before a reply leaves
log        records that outlive the process, in mapped files
snapshot   all objects of `snapshot_classes` as bytes
recovery   snapshot -> replay of the records -> a running kernel
hooks      the interface between the kernel and recorder or replay
store      the journal's directory, and whether the journal may be used
"""
