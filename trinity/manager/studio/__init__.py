"""The studio: a page on which a run is configured, started and watched."""
