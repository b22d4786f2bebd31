"""Benchmarks: Penstock's broker and Apache Kafka in turn, with the same clients; start reading at `run.py`."""

if __name__ != "penstock.bench":
    raise ImportError("`bench` is a part of penstock: `import penstock.bench`")
