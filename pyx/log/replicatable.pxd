"""Roles of partitions, and their replicas, for the control plane: a part of `LogManager`."""

from penstock.pyx.log.logtable cimport LogTable


cdef class ReplicaTable(LogTable):
    pass
