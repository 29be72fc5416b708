"""Programs: uploaded modules, their names, and the machine code made of them.

program    as the gateway knows it
store      programs in the database and in memory
shipped    programs that ship with the server; languages: the modules of its languages
versions   of names, in the database
files      on disk; usage: when each program was last used, and how often
"""
