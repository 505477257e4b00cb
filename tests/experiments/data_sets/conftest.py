"""Published sets with few records."""

from small_published import publish  # noqa: F401
