"""The loop of a program's author: `symphony dev`, `deploy` and `test` in a project's folder.

`languages` is the table of what each language
builds, watches and tests. `local_server` finds a server or starts one.
"""
