"""Programs: uploaded modules, their names, and the machine code made of them.

store   programs in the database and in memory; files: on disk; usage: when each was last used
"""
