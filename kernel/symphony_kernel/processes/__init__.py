"""The process table: instances, their links, limits and handles.

table     which instance may call, over which link, and what it holds handles   an instance's table
of capabilities: a file and a mask of rights each
"""
