"""The names of the phases of a request, in the order of requesttimes.pxd's Phase."""

PHASES = ("queue", "local", "waiting", "send", "total")
