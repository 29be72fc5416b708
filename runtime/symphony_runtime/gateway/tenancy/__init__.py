"""Tenants: keys, limits, what operators change, and how a tenant is deleted.

authentication, keys   which tenant a key is of; making, changing and revoking keys
tenants                tenants and what each may have
administration         what operators see and change, and what follows from it
deletion               everything of a tenant goes; program_expiry: unused programs go
audit                  what operators did, and what was denied
"""
