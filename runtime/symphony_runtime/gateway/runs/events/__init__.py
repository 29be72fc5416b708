"""Events of a run, in order, with ids from which a reader can resume.

stream   `EventStream`: memory, crash log and database of one live run; `EphemeralStream`
inbox    `Inbox`: what the client of a run that is not stored gets
reader   `Cursor` and `StoredEventCache`: stored events, read in small parts
"""
