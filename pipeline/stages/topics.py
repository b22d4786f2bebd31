"""Which topics of a source are copied, and what they are called on the target."""

from __future__ import annotations

import itertools

from penstock.config import Config, ConfigError
from penstock.pipeline import job
from penstock.regex import Regex, RegexError, compile_regex

TOPIC, SOURCE = "${topic}", "${source}"


class TopicChoice:
    """The choice that a pipeline's file makes: `topics` by name, `topics.include` without `topics.exclude` by expression.

    Raises ConfigError for what is no expression, or a name on the target that lacks the topic's own.
    """

    def __init__(self, config: Config) -> None:
        for sentence in wrong(config):
            raise ConfigError(sentence)
        self.named: list[str] = list(dict.fromkeys(config["topics"]))
        self._include = _expression(config, "topics.include")
        self._exclude = _expression(config, "topics.exclude")
        self._rename: str = config["penstock.mirror.rename"]
        self._made = job.made_topics(config)

    @property
    def are_searched(self) -> bool:
        """Whether a source may have topics that nobody named."""
        return self._include is not None

    @property
    def are_apart(self) -> bool:
        """Whether each source has topics of its own on the target."""
        return SOURCE in self._rename

    def wants(self, topic: str, internal: bool = False, source: str = "") -> bool:
        """Whether a source's topic is copied. An expression takes none that a stage has made, and none of a source, if that is
        given, that would go where dedupe writes."""
        if topic in self.named:
            return True
        if self._include is None or internal or topic.startswith((job.MADE, "__")) or self.into(source, topic) in self._made:
            return False
        return self._include.matches(topic) and not (self._exclude is not None and self._exclude.matches(topic))

    def into(self, source: str, topic: str) -> str:
        """What a source's topic is called on the target."""
        return self._rename.replace(SOURCE, source).replace(TOPIC, topic)

    def out_of(self, source: str, into: str) -> str | None:
        """The source's topic that is called so on the target; None if none can be."""
        before, after = self._rename.replace(SOURCE, source).split(TOPIC)
        if not (into.startswith(before) and into.endswith(after) and len(into) > len(before) + len(after)):
            return None
        return into[len(before) : len(into) - len(after)]


def wrong(config: Config) -> list[str]:
    """All that is wrong with the choice, a sentence each."""
    found = []
    for key in ("topics.include", "topics.exclude"):
        try:
            _expression(config, key)
        except RegexError as error:
            found.append(f"`{key}={config[key]}` is no expression: {error}")
    rename = config["penstock.mirror.rename"]
    if TOPIC not in rename or "$" in rename.replace(TOPIC, "", 1).replace(SOURCE, ""):
        found.append(
            f"`penstock.mirror.rename={rename}` must hold {TOPIC} once, and may hold {SOURCE}: other topics would run into "
            "each other"
        )
        return found
    made = job.made_topics(config)
    for source, topic in itertools.product(job.sources(config), config["topics"]):
        if (into := rename.replace(SOURCE, source).replace(TOPIC, topic)) in made:
            found.append(
                f"`topics` names `{topic}`, which the mirror would copy into `{into}`, where dedupe writes: leave it out"
            )
    return list(dict.fromkeys(found))


def _expression(config: Config, key: str) -> Regex | None:
    return compile_regex(config[key]) if config[key] else None
