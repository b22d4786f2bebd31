"""Settings of all property tests: no test is judged by time, and a failure prints how to get it again."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
