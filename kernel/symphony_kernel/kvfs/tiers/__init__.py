"""Tiers: where each page's K and V are, and what moves them.

tiers                        which tier each page is in, and transfers between tiers
page_transfers               transfers that the device has yet to make, in order
base, disk_tier, disk_file   pages below the host tier
eviction, eviction_order     which pages leave the device first
advice                       what a program said of its file (`kv_advise`)
config                       the size of each tier, and opening them
"""
