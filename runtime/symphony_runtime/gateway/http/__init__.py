"""What handlers share: services, bodies, paging, idempotency, errors.

context       the services of a request; bodies, paging, answers
route         the description of a route
responses     large answers
idempotency   requests with a key take effect once
"""
