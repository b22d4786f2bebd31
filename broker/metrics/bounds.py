"""What keeps a page small, however many topics, partitions, groups and APIs there are.

A scrape is stored for weeks: a client that makes topics or groups must not fill Prometheus, nor this broker's memory. So each
kind of series has a number of rows and of bytes; what is left out is counted, and shown as `penstock_metrics_dropped_series`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.broker.metrics.families import DROPPED
from penstock.metrics import REST, Family, Page, labels_text

ROWS_MAX = 2_000
PAGE_BYTES = 1_000_000
OTHERS_BYTES = 60_000
"""What has no bound here is less."""
VALUE_BYTES = 24
"""A number of up to 16 digits, with blank, line end and `_total`."""

Row = tuple[str, float]


def row_bytes(family: Family, labels: str) -> int:
    """How long a sample is on the page, at most."""
    return len(family.name) + len(labels.encode("utf-8", "replace")) + VALUE_BYTES


class Bounds:
    """Of one page: how many bytes are left, and what was left out."""

    def __init__(self, left_bytes: int = PAGE_BYTES - OTHERS_BYTES, dropped: dict[str, int] | None = None) -> None:
        self.left_bytes = left_bytes
        self.dropped: dict[str, int] = {} if dropped is None else dropped

    def fitting(self, families: Sequence[Family], labels: Sequence[str], most_bytes: int, of: int | None = None) -> int:
        """How many rows, from the first one on, fit if each has a sample in each family; their bytes are taken, and those that
        don't fit are counted as left out. At most `ROWS_MAX`. of: how many rows there are, if those are only the first."""
        left_bytes = min(most_bytes, self.left_bytes)
        count = 0
        stem_bytes = sum(row_bytes(family, "") for family in families)
        for text in labels[:ROWS_MAX]:
            size = stem_bytes + len(families) * len(text.encode("utf-8", "replace"))
            if size > left_bytes:
                break
            left_bytes -= size
            self.left_bytes -= size
            count += 1
        for family in dict.fromkeys(families):
            self.drop(family, (len(labels) if of is None else of) - count)
        return count

    def write_largest(
        self,
        page: Page,
        family: Family,
        rows: Iterable[tuple[Sequence[str], float]],
        most_bytes: int,
        *,
        with_rest: bool = True,
    ) -> None:
        """A family's largest samples, as many as fit, of rows with its labels' values; `with_rest`: the others as one sum."""
        ordered = sorted(rows, key=lambda row: row[1], reverse=True)
        labels = [labels_text(family, which) for which, _ in ordered[:ROWS_MAX]]
        count = self.fitting([family], labels, most_bytes, len(ordered))
        page.family(family)
        page.samples([(text, number) for text, (_, number) in zip(labels[:count], ordered, strict=False)])
        if with_rest and count < len(ordered):
            page.sample((REST,) * len(family.labels), sum(number for _, number in ordered[count:]))

    def drop(self, family: Family, count: int) -> None:
        """Series of a family that were left out."""
        if count:
            self.dropped[family.name] = self.dropped.get(family.name, 0) + count

    def write(self, page: Page) -> None:
        """Last: what was left out."""
        page.family(DROPPED)
        page.samples((labels_text(DROPPED, (name,)), count) for name, count in sorted(self.dropped.items()))
