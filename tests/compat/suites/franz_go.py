"""franz-go's own tests of its client `kgo`: consuming, classic and KIP-848 groups, chains of transactions."""

from __future__ import annotations

from collections.abc import Iterator

from suite import Outcome, Run, go_module

from suites import go_tests

NEEDS = "go"
MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
# The tests that ask a broker something, share groups aside.
TESTS = "^Test(Issue|Consume|848|Direct|AddRemove|Pause|Pooling|Group|Hook|PollWait|TxnEtl|Ping|UnknownGroup)"
RECORDS = 20_000  # of each chain of groups; its own half a million takes minutes


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of its tests, when all are done."""
    package = go_module(run.cache, MODULE, VERSION) / "pkg" / "kgo"
    changes = {
        "KGO_SEEDS": run.bootstrap,
        "KGO_TEST_RF": str(run.copies),
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    yield from go_tests.outcomes(run, package, TESTS, **changes)
