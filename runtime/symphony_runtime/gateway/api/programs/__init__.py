"""Routes of programs' versions.

versions   the handlers; routes: their part of the route table
"""
