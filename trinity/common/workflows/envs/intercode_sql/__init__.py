"""Questions that are answered with SQL."""
