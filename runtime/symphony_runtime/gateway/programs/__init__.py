"""Programs: uploaded modules, their names, and the machine code made of them.

store      programs in the database and in memory
versions   of names, in the database
files      on disk; usage: when each program was last used, and how often
"""
