"""Configuration: the operator's options, checked before a role starts.

serve       the options of `symphony serve`, and the file of `--config`
models      the models of a server, by name
limits      the limits of runs and tenants
egress      the tools and URLs that programs may use, by tenant
transport   how clients reach the gateway: this machine only, TLS, or a proxy
"""
