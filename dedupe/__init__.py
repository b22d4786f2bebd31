"""Drops messages whose id was seen before; the output topic is the write-ahead log and the truth (DED-1 to DED-8).

One worker an input partition. RocksDB holds the ids; whatever it lacks after a crash is read again from the output.
"""

if __name__ != "penstock.dedupe":
    raise ImportError("`dedupe` is a part of penstock: `import penstock.dedupe`")
