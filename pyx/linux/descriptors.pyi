"""File descriptors, which the whole process shares: how many there may be, and what was done for want of them."""

def allowed() -> tuple[int, int]:
    """How many descriptors the process may have now (RLIMIT_NOFILE), and how many of them connections never take."""

def counters() -> dict[str, int]:
    """Since the process began. log_files_closed_early: files of logs that were closed so that others could be opened.
    opens_without_descriptor: files that couldn't be opened, since no descriptor was free (EMFILE, ENFILE).
    """

def last_refused() -> str:
    """The file that couldn't be opened when that happened last; empty if it never did."""
