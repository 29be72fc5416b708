"""Tiers: where each page's K and V are (device, host memory, disk, nowhere), and what moves them.

tiers                        which tier a page is in, and moves between tiers
page_transfers               copies that the device still has to do, in order
disk_tier, disk_file         pages below the host tier
eviction, eviction_order     which pages leave the device first
advice                       what a program said of its file (`kv_advise`)
config                       the room of each tier, and what opens it
"""
