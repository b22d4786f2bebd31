"""The pace of compaction."""

class Pace:
    """How fast all cleaners of a broker together read and write; 0 = no limit."""

    def __init__(self, bytes_per_second: float = 0) -> None: ...
    def limit(self, bytes_per_second: float) -> None:
        """Change the limit; it holds from the next batch on."""
    def end(self) -> None:
        """End the passes that are under way (NOT_LEADER_OR_FOLLOWER) and refuse later ones."""
