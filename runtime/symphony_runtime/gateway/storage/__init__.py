"""Storage: the database, and files that survive the gateway.

store                         one thread that writes and one that reads
database                      the contract; sqlite and postgresql implement it
schema                        numbered migrations, in `migrations/`
large_sends                   memory that large messages of programs wait for
crash_log                     events of live runs that are not in the database yet
write_behind                  many small records, written in batches
changes                       changes by other gateways of the database
deletion_steps                deletions in steps that fit on a full disk
disk_budget, data_directory   disk space and its budget; whether the data directory still exists
"""
