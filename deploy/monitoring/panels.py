"""The dashboards, as a table: rows of panels that answer an operator's questions from top to bottom. `generate.py` makes
Grafana's JSON of it.

`$here` in a query stands for the variables' selection of targets (`HERE`); `$rate` for the time that a rate looks at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

HERE = 'datacenter=~"$datacenter",instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One panel. `queries`: PromQL and the legend of each. `red_from`: the value of a `stat` from which it is red."""

    title: str
    kind: Literal["stat", "timeseries", "table"]
    unit: str  # as Grafana names it
    queries: tuple[tuple[str, str], ...]
    says: str = ""
    red_from: float | None = None
    width: int = 8  # of 24
    stacked: bool = False


@dataclass(frozen=True)
class Variable:
    """What a person chooses at the top, out of a label's values."""

    name: str
    label: str
    query: str


@dataclass(frozen=True)
class Dashboard:
    """One file. `rows`: an operator's question, and the panels that answer it."""

    uid: str
    title: str
    variables: tuple[Variable, ...]
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)


def number(title: str, query: str, says: str = "", *, unit: str = "none", red_from: float | None = 1) -> Panel:
    """One figure; 24 columns hold six of them."""
    return Panel(title, "stat", unit, ((query, ""),), says, red_from, width=4)


def lines(title: str, unit: str, *queries: tuple[str, str], says: str = "", stacked: bool = False) -> Panel:
    """A picture over time."""
    return Panel(title, "timeseries", unit, queries, says, stacked=stacked)


def quantile(share: float, name: str, by: str, selected: str = "") -> str:
    """Of a histogram."""
    chosen = f"{name}_bucket{{$here{selected}}}"
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({chosen}[$rate])))"


def rate(name: str, by: str = "", selected: str = "") -> str:
    """A counter's increase a second."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({name}{{$here{selected}}}[$rate]))"


def alerts(parts: str) -> Panel:
    """How many alerts fire."""
    chosen = f'alertstate="firing",alertname=~"Penstock.*",part=~"{parts}|",datacenter=~"$datacenter"'
    query = f"count(ALERTS{{{chosen}}}) or vector(0)"
    return number("Alerts", query, "Alerts that fire; each has a hint with the command to run.")


def down(parts: str) -> Panel:
    """How many processes don't answer."""
    query = f'count(up{{part=~"{parts}",$here}} == 0) or vector(0)'
    return number("Do not answer", query, "Processes whose figures Prometheus can't get.")


DATACENTER = Variable("datacenter", "Datacenter", "label_values(up{part!=''}, datacenter)")
TOPIC = ',topic=~"$topic"'
GROUP = ',consumergroup=~"$group"'


def of_topics(name: str, word: str = "") -> tuple[str, str]:
    """A broker's counter by topic, of each datacenter: the same topic is in several. `word` is added to the legend."""
    query = rate(f"kafka_server_brokertopicmetrics_{name}_total", "datacenter, topic", TOPIC)
    return query, f"{{{{datacenter}}}} {{{{topic}}}} {word}".rstrip()


BROKER = Dashboard(
    "penstock-broker",
    "Penstock: brokers",
    (
        DATACENTER,
        Variable("instance", "Broker", "label_values(up{part='broker',datacenter=~'$datacenter'}, instance)"),
        Variable("topic", "Topic", "label_values(kafka_topic_partitions{datacenter=~'$datacenter'}, topic)"),
        Variable("group", "Group", "label_values(kafka_consumergroup_lag_sum{datacenter=~'$datacenter'}, consumergroup)"),
    ),
    {
        "Is all well?": (
            alerts("broker"),
            down("broker"),
            number("Not ready", "sum(1 - penstock_broker_ready{$here})", "Brokers that serve no client, or recover logs."),
            number("Partitions offline", "sum(kafka_controller_kafkacontroller_offlinepartitionscount{$here})"),
            number("Folders offline or full", "sum(penstock_log_folder_offline{$here} + penstock_log_folder_full{$here})"),
            number("Clocks off", "sum(1 - penstock_clock_settled{$here})", "Until they settle, nothing is deleted by age."),
        ),
        "What stands?": (
            lines("Partitions that recover", "none", ("penstock_broker_recovering_partitions{$here}", "{{instance}}")),
            lines(
                "Failed requests",
                "reqps",
                of_topics("failedproducerequests", "produce"),
                of_topics("failedfetchrequests", "fetch"),
                says="Answers with an error, by topic.",
            ),
            lines(
                "Slow requests",
                "reqps",
                (rate("penstock_slow_requests_total", "instance, request"), "{{instance}} {{request}}"),
                says="Above penstock.slow.request.ms; the broker's log has each with its phases.",
            ),
        ),
        "Do replicas follow?": (
            lines(
                "Under-replicated",
                "none",
                ("kafka_server_replicamanager_underreplicatedpartitions{$here}", "{{instance}}"),
                ("kafka_server_replicamanager_underminisrpartitioncount{$here}", "{{instance}} under min.insync.replicas"),
                says="Partitions of its leader that lack replicas in sync.",
            ),
            lines(
                "Lag of replicas in records",
                "short",
                ("kafka_server_replicafetchermanager_maxlag{$here}", "{{instance}}"),
                says="The most records that a copy of this broker lacks of its leader's.",
            ),
            lines(
                "Lease left",
                "s",
                ("penstock_lease_left_seconds{$here}", "{{instance}}"),
                says="At 0 a broker has not heard from ZooKeeper for two thirds of a session; at -1 it needs no lease.",
            ),
            lines(
                "Elections, changes of the ISR",
                "ops",
                (
                    rate("kafka_controller_controllerstats_leaderelectionrateandtimems_total", "datacenter"),
                    "{{datacenter}} elections",
                ),
                (rate("kafka_server_replicamanager_isrshrinks_total", "instance"), "{{instance}} shrinks"),
                (rate("kafka_server_replicamanager_isrexpands_total", "instance"), "{{instance}} expands"),
                (rate("kafka_server_sessionexpirelistener_zookeeperexpires_total", "instance"), "{{instance}} sessions lost"),
                (
                    rate("kafka_controller_controllerstats_uncleanleaderelections_total", "datacenter"),
                    "{{datacenter}} unclean elections",
                ),
            ),
            lines(
                "Replication",
                "Bps",
                (rate("kafka_server_brokertopicmetrics_replicationbytesin_total", "instance"), "{{instance}}"),
                says="Bytes that a broker fetched from leaders.",
            ),
            lines(
                "Events that wait for the controller",
                "none",
                ("kafka_controller_controllereventmanager_eventqueuesize{$here}", "{{instance}}"),
            ),
        ),
        "How far behind?": (
            lines(
                "Lag of groups in time",
                "s",
                (
                    f"max by (consumergroup, topic) (penstock_consumergroup_lag_seconds{{$here{TOPIC}{GROUP}}})",
                    "{{consumergroup}} {{topic}}",
                ),
                says="The age of the oldest record that a group has not read.",
            ),
            lines(
                "Lag of groups in records",
                "short",
                (
                    f"sum by (consumergroup, topic) (kafka_consumergroup_lag{{$here{TOPIC}{GROUP}}})",
                    "{{consumergroup}} {{topic}}",
                ),
            ),
            lines(
                "Members of groups",
                "none",
                (f"sum by (consumergroup) (kafka_consumergroup_members{{$here{GROUP}}})", "{{consumergroup}}"),
            ),
        ),
        "How fast?": (
            lines(
                "Records in",
                "recps",
                of_topics("messagesin"),
            ),
            lines(
                "Bytes in",
                "Bps",
                of_topics("bytesin"),
            ),
            lines(
                "Bytes out",
                "Bps",
                of_topics("bytesout"),
            ),
            lines(
                "Time of requests, 99 of 100",
                "s",
                (quantile(0.99, "penstock_request_seconds", "request", ',phase="total"'), "{{request}}"),
                says="A fetch's time has the wait for new records in it.",
            ),
            lines(
                "Where the time of a produce goes",
                "s",
                (
                    rate("penstock_request_seconds_sum", "phase", ',request="Produce",phase!="total"')
                    + " / on () group_left () "
                    + rate("penstock_request_seconds_count", "", ',request="Produce",phase="total"'),
                    "{{phase}}",
                ),
                stacked=True,
                says="The mean of each phase: queue, local, waiting, send.",
            ),
            lines("Requests", "reqps", (rate("kafka_network_requestmetrics_requests_total", "request"), "{{request}}")),
        ),
        "What fills up?": (
            lines(
                "Log folders, free",
                "bytes",
                ("penstock_log_folder_free_bytes{$here}", "{{instance}} {{folder}}"),
            ),
            lines(
                "The largest topics",
                "bytes",
                (
                    'topk(10, sum by (datacenter, topic) (kafka_log_log_size{$here,topic=~"$topic"}))',
                    "{{datacenter}} {{topic}}",
                ),
            ),
            lines(
                "Time of threads",
                "percentunit",
                ("1 - kafka_network_socketserver_networkprocessoravgidle_percent{$here}", "{{instance}} network"),
                ("1 - kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{$here}", "{{instance}} workers"),
                ("rate(penstock_control_loop_busy_seconds_total{$here}[$rate])", "{{instance}} control"),
                says="1 is busy all the time.",
            ),
            lines(
                "Connections",
                "none",
                (
                    "sum by (instance, listener) (kafka_server_socket_server_metrics_connection_count{$here})",
                    "{{instance}} {{listener}}",
                ),
            ),
            lines("Memory", "bytes", ('process_resident_memory_bytes{part="broker",$here}', "{{instance}}")),
            lines(
                "Descriptors",
                "percentunit",
                ('process_open_fds{part="broker",$here} / process_max_fds{part="broker",$here}', "{{instance}}"),
                says="The share of what the process may open.",
            ),
        ),
    },
)

STAGES = "mirror|dedupe"
GOING = "copying|registered|reading"
PIPELINE = Dashboard(
    "penstock-pipeline",
    "Penstock: the pipeline",
    (
        DATACENTER,
        Variable("instance", "Host", f"label_values(up{{part=~'{STAGES}|etl',datacenter=~'$datacenter'}}, instance)"),
        Variable("topic", "Topic", "label_values(penstock_lane_read_records_total{datacenter=~'$datacenter'}, topic)"),
    ),
    {
        "Is all well?": (
            alerts(f"{STAGES}|etl"),
            down(f"{STAGES}|etl"),
            number("Stages not ready", "sum(1 - penstock_stage_ready{$here})"),
            number(
                "Lanes that stand",
                f'sum(penstock_lanes{{$here,state!~"{GOING}"}}) or vector(0)',
                "In any state but copying, registered and reading.",
            ),
            number(
                "Age of the newest night",
                "time() - min(penstock_night_last_loaded_day_timestamp_seconds{$here})",
                "Since the end of the newest night that is loaded, of the table that is furthest behind.",
                unit="s",
                red_from=90_000,
            ),
            number("Last exit code of nights", "max(penstock_night_exit_code{$here})"),
        ),
        "What stands?": (
            lines(
                "Lanes by state",
                "none",
                ("sum by (stage, state) (penstock_lanes{$here}) > 0", "{{stage}} {{state}}"),
                stacked=True,
            ),
            Panel(
                "Lanes by state, now",
                "table",
                "none",
                (("sum by (stage, name, instance, state) (penstock_lanes{$here})", ""),),
                "`penstock mirror status` and `penstock dedupe status` say why each stands, and what to do.",
            ),
            lines(
                "Nights that wait",
                "none",
                ("max by (table, reason) (penstock_night_waiting{$here})", "{{table}} {{reason}}"),
                says="1 while a night waits, by reason.",
            ),
        ),
        "How far behind?": (
            lines(
                "Lag of the mirror",
                "s",
                (
                    'max by (source, topic) (penstock_lane_lag_seconds{stage="mirror",$here,topic=~"$topic"})',
                    "{{source}} {{topic}}",
                ),
                says="The age of the oldest record that is not copied.",
            ),
            lines(
                "Lag of dedupe",
                "s",
                ('max by (topic) (penstock_lane_lag_seconds{stage="dedupe",$here,topic=~"$topic"})', "{{topic}}"),
                says="The age of the oldest record that is not deduplicated.",
            ),
            lines(
                "Age of nights",
                "s",
                ("time() - penstock_night_last_loaded_day_timestamp_seconds{$here}", "{{table}}"),
                says="Since the end of the newest night that is loaded.",
            ),
            lines(
                "Records not read",
                "short",
                (
                    'sum by (stage, source, topic) (penstock_lane_lag_records{$here,topic=~"$topic"})',
                    "{{stage}} {{source}} {{topic}}",
                ),
            ),
            lines(
                "Since the last commit",
                "s",
                (
                    "max by (stage, source, topic)"
                    ' (time() - (penstock_lane_last_commit_timestamp_seconds{$here,topic=~"$topic"} > 0))',
                    "{{stage}} {{source}} {{topic}}",
                ),
                says="Of the lane that committed longest ago; one without records commits seldom.",
            ),
        ),
        "How fast?": (
            lines(
                "Records published",
                "recps",
                (rate("penstock_lane_records_total", "stage, source, topic", TOPIC), "{{stage}} {{source}} {{topic}}"),
            ),
            lines(
                "Bytes published",
                "Bps",
                (rate("penstock_lane_bytes_total", "stage, source, topic", TOPIC), "{{stage}} {{source}} {{topic}}"),
            ),
            lines(
                "Duplicates",
                "recps",
                (rate("penstock_dedupe_duplicates_total", "topic", TOPIC), "dropped {{topic}}"),
                (rate("penstock_dedupe_without_id_total", "topic", TOPIC), "without id {{topic}}"),
                (rate("penstock_dedupe_moved_total", "topic", TOPIC), "moved {{topic}}"),
            ),
            lines("Rows of the last night", "short", ("penstock_night_rows{$here}", "{{table}}")),
            lines("Time of the last night", "s", ("penstock_night_duration_seconds{$here}", "{{table}}")),
        ),
        "What fills up?": (
            lines(
                "Window of dedupe",
                "s",
                ("min by (name, topic) (penstock_dedupe_window_seconds{$here})", "{{name}} {{topic}}"),
                says="The age of the oldest id that is kept: what comes again after that passes twice.",
            ),
            lines(
                "Databases of ids",
                "percentunit",
                (
                    "max by (name, topic) (penstock_dedupe_database_bytes{$here} / penstock_dedupe_database_max_bytes{$here})",
                    "{{name}} {{topic}}",
                ),
                says="The share of penstock.dedupe.size.max.bytes; at 1 the oldest ids go.",
            ),
            lines(
                "Rejects of the last night",
                "percentunit",
                ("penstock_night_rejects{$here} / (penstock_night_rows{$here} + penstock_night_rejects{$here})", "{{table}}"),
            ),
            lines(
                "Held in flight",
                "bytes",
                ("penstock_stage_held_bytes{$here}", "{{instance}} {{stage}}"),
                says="Batches that a stage has read and not published yet.",
            ),
            lines("Memory", "bytes", (f'process_resident_memory_bytes{{part=~"{STAGES}",$here}}', "{{instance}} {{part}}")),
        ),
    },
)

DASHBOARDS = {"broker": BROKER, "pipeline": PIPELINE}
