"""Copies topics of any number of source clusters into one target cluster, exactly once, batches as they are.

The rules are those of MIR-1 and MIR-2: the target is the truth. A partition's position is committed on the target
in the transaction that carries its batches, and a mirror that starts asks the target where it was.
"""

if __name__ != "penstock.mirror":
    raise ImportError("`mirror` is a part of penstock: `import penstock.mirror`")
