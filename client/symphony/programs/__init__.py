"""Functions as programs.

program    the decorator: `run` attaches, `deploy` uploads the source
schema     the JSON schema of a signature, and values for it
source     a function's source, and the version that is its digest
"""
