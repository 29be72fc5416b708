"""The supervisor: starts, watches, restarts and stops the roles.

role           one role's process, and the next one when it dies
environment    the part of the operator's environment that each role sees
console        the operator's output
"""
