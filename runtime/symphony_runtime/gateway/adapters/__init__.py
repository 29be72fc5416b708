"""LoRA adapters of tenants: uploads, names, and what the kernel knows of them.

records     rows of the database
store       the adapters of all tenants
handlers    the routes' handlers
routes      the routes
"""
