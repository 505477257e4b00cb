"""Published data sets: one file each."""
