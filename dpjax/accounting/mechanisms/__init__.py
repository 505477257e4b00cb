"""Base runs: one file a mechanism, each a function that returns a Guarantee."""
