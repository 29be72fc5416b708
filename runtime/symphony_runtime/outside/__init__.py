"""What programs do outside of the server, as the operator allows it and as they ask for it.

`options` is what stands in symphony.toml, `requests` what guests pass: worker and gateway both
check that, and neither believes the other. `symphony_runtime.gateway.outside` makes the calls.
"""
