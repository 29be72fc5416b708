"""The journal: brings the kernel back after a kill -9, in the state that its peers know.

recorder   notes each frame and what no frame determines, before a reply leaves
log        records that outlive the process, in mapped files
snapshot   all objects of `snapshot_classes` as bytes
recovery   snapshot -> replay of the records -> a kernel that goes on
hooks      the interface between the kernel and recorder or replay
store      the journal's directory, and whether it may be believed
"""
