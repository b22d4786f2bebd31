"""Suites of others' tests, one a file. Each has `NEEDS` (what must be there beforehand) and `run(run) -> outcomes`."""
