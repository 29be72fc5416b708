"""The supervisor: starts the roles, watches them, starts them again, stops them all.

environment    what each role sees of the operator's environment
child_output   lines and events that a role writes to its output
console        what the operator reads
"""
