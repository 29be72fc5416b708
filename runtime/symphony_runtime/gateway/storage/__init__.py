"""Storage: the database, and files that outlive the gateway.

store                  one thread that writes and one that reads
database               the contract; sqlite and postgresql implement it
schema                 numbered migrations, in `migrations/`
crash_log              events of live runs that are not in the database yet
write_behind           many small notes, written in batches
changes                what other gateways of the database change
disk_budget, data_directory   free space and budget; whether the data directory is still there
"""
