"""The supervisor: starts the roles, watches them, starts them again, stops them all.

role           one role's process, and the next one when it dies
environment    the part of the operator's environment that each role sees
console        the operator's output
"""
