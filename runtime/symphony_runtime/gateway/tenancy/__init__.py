"""Tenants: keys, limits, changes by operators, and the deletion of a tenant.

authentication, keys   the tenant and rights of a key; creating, changing and revoking keys
tenants                tenants and their quotas
administration         what operators see and change, and the consequences
deletion               deletes a tenant with all it has; program_expiry: deletes unused programs
audit                  changes by operators, and refused requests
"""
