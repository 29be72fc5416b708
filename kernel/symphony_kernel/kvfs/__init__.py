"""KVFS: KV caches as files. Pages below, files in them, names over them.

    filesystem   a tenant's files and names over the one pool of pages
    file         ordered entries in shared pages, copied on write; file_queue: operations in order
    names, name_tree, tenants, quotas   names, their tenants, and which account pays
    expiry_queue when names and kept files end
    storage      what all files share; observer: events that no call determines
    pages/ tiers/ durable/ lineage/

Lifetime: a file lives while it has references (see `filesystem`), a page while files hold it.
Nothing here is thread-safe: all of it runs on the kernel's event loop. Nothing here checks a
guest's arguments, and nothing here knows instances or the scheduler.
"""
