"""Events of a run, in order, with ids from which a reader can resume.

stream   `EventStream`: memory, crash log and database of one live run; `EphemeralStream`
reader   `Cursor` and `StoredEventCache`: stored events, read in small parts
"""
