"""Configuration: what an operator may set, checked before a role starts.

serve       the options of `symphony serve`, and the file of `--config`
limits      what runs and tenants may use
egress      which tools and URLs programs may call, for which tenants
transport   how clients reach the gateway: this machine only, TLS, or a proxy
"""
