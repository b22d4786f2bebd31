"""The nightly load: one night's ranges of the deduplicated topic become one commit of a Delta table."""
