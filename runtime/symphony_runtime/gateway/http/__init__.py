"""What handlers share: services, bodies, paging, idempotency, errors.

context       the services that requests are served with; bodies, paging, answers
route         what a route is
idempotency   requests that come twice get one answer
fair_start    requests begin in tenants' turns
"""
