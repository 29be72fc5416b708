"""Responses that are kept: each is a run that has its request as its first event.

kept           a kept response, found, and as it is now
conversation   what a request builds upon: earlier responses, and items of them
items          the items of a request, as they are listed
handlers       the routes
"""
