"""The procedures: one file a paper."""
