"""The data plane: Cython without the GIL; start reading at `plane.pxd`, `partition.pxd`, `batch.pxd`."""

if __name__ != "penstock.pyx":
    raise ImportError("`pyx` is a part of penstock: `import penstock.pyx`")
