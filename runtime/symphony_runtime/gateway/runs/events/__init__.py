"""Events of a run, in order, with ids that resume.

stream    what a run sends: to the crash log, to readers, to the database
reader    reads stored events in small parts
unsaved   the stream of a run that is not kept
"""
