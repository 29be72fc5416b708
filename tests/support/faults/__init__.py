"""Storage that fails: by a preloaded library, by full disks, by schedules of crashes."""
