"""The alerts, as a table. `generate.py` makes Prometheus' rules of it, a test of each for promtool, and README.md's runbook.

A duration is written {30m}, and as a number of seconds {30m:s}, so that a test can shorten it. An alert that fires has its
series' labels: `datacenter`, `part` and `instance` are those of the scrape configuration. `<topic>` in a hint is that label's
value, quoted for a shell: a group may have any name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BROKER = {"datacenter": "ewr", "part": "broker", "instance": "ewr-1"}
STAGE = {"datacenter": "aggregate", "part": "mirror", "instance": "aggregate-1"}
DEDUPE = {"datacenter": "aggregate", "part": "dedupe", "instance": "aggregate-1"}
NIGHTS = {"datacenter": "aggregate", "part": "etl", "instance": "aggregate-1"}
PIPELINE = "--config /etc/penstock/pipeline.properties"
SERVER = "--config /etc/penstock/server.properties"


@dataclass(frozen=True)
class Case:
    """What promtool is told: samples a minute by series, in its notation, and the minute at which it looks."""

    series: Mapping[str, str]
    at: int
    labels: Mapping[str, str] | None = None  # of the alert that fires; None: none fires
    value: str = ""  # `$value` as the summary shows it


@dataclass(frozen=True)
class Alert:
    """One alert. `wait`: how long its expression must hold before it fires."""

    name: str
    severity: Literal["critical", "warning"]
    expression: str
    wait: str
    summary: str
    hint: str  # a command that can be pasted on the host of the alert
    runbook: str
    cases: tuple[Case, ...]


def series(name: str, labels: Mapping[str, str], **more: str) -> str:
    """A series as PromQL writes it."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in {**labels, **more}.items()) + "}"


def fires(name: str, labels: Mapping[str, str], samples: str, at: int, value: str = "", **more: str) -> Case:
    """One series by which the alert fires, with the labels of that series."""
    return Case({series(name, labels, **more): samples}, at, {**labels, **more}, value)


def quiet(name: str, labels: Mapping[str, str], samples: str, at: int, **more: str) -> Case:
    """One series by which it doesn't."""
    return Case({series(name, labels, **more): samples}, at)


LANE = {**STAGE, "stage": "mirror", "name": "mirror"}
LANE_OF = {**LANE, "source": "EWR", "topic": "flights", "partition": "0"}
DEDUPED = {**DEDUPE, "stage": "dedupe", "name": "dedupe", "topic": "flights", "partition": "0"}
WINDOW, DATABASE, DATABASE_MAX = (
    f"penstock_dedupe_{one}" for one in ("window_seconds", "database_bytes", "database_max_bytes")
)
STORE = {series(DATABASE_MAX, DEDUPED): "100x30"}
TABLE = {**NIGHTS, "table": "penstock.etl"}
GROUP = {**BROKER, "consumergroup": "billing", "topic": "flights", "partition": "0"}
CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"
OFFLINE = "kafka_controller_kafkacontroller_offlinepartitionscount"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
UNDER_MIN_ISR = "kafka_server_replicamanager_underminisrpartitioncount"
UNCLEAN = "kafka_controller_controllerstats_uncleanleaderelections_total"
SESSIONS_LOST = "kafka_server_sessionexpirelistener_zookeeperexpires_total"
ROWS, REJECTS = "penstock_night_rows", "penstock_night_rejects"
HOSTILE = "it's $(reboot)"
FOLDER = {**BROKER, "folder": "/srv/penstock/a/log"}
# No duration of lag is right for all readers. One falls back if its lag in the last quarter of an hour never was as small as
# the largest of the quarter before. A minute lies between the two: a sample on their border would be in both.
GROWS = "min_over_time(%s[{15m}]) > max_over_time(%s[{15m}] offset {16m})"

BROKER_ALERTS = (
    Alert(
        "PenstockBrokerDown",
        "critical",
        'up{part="broker"} == 0',
        "{2m}",
        "Broker {{ $labels.instance }} in {{ $labels.datacenter }} does not answer Prometheus.",
        "systemctl status penstock-broker; journalctl -u penstock-broker -n 50",
        "The process has ended, hangs, or can't be reached. If it runs, look at `penstock.http.listen` and the network.",
        (fires("up", BROKER, "1 0x5", 4), quiet("up", BROKER, "1x3 0 1x5", 5), quiet("up", STAGE, "0x5", 4)),
    ),
    Alert(
        "PenstockRestarts",
        "critical",
        'changes(process_start_time_seconds{part=~"broker|mirror|dedupe"}[{15m}]) > 2',
        "{0m}",
        "The {{ $labels.part }} on {{ $labels.instance }} has begun again {{ $value }} times within {15m}.",
        "systemctl status penstock-{{ $labels.part }}; journalctl -u penstock-{{ $labels.part }} -n 100",
        "It ends soon after each start, before anybody sees it down. The last lines before each start say why.",
        (
            fires("process_start_time_seconds", BROKER, "0x3 100x3 200x3 300x30", 16, "3"),
            fires("process_start_time_seconds", STAGE, "0+60x30", 20, "15"),
            quiet("process_start_time_seconds", BROKER, "0x5 100x5 200x30", 16),
        ),
    ),
    Alert(
        "PenstockBrokerNotReady",
        "critical",
        "penstock_broker_ready == 0 and changes(penstock_broker_recovering_partitions[{10m}]) == 0",
        "{5m}",
        "Broker {{ $labels.instance }} in {{ $labels.datacenter }} is not ready, and its recovery does not move.",
        "journalctl -u penstock-broker -n 50; penstock doctor " + SERVER,
        "The broker opens its logs, or its metadata store doesn't answer. While recovery moves, the number of partitions falls "
        "and nothing fires.",
        (
            Case(
                {
                    series("penstock_broker_ready", BROKER): "0x30",
                    series("penstock_broker_recovering_partitions", BROKER): "900x30",
                },
                20,
                BROKER,
            ),
            Case(
                {
                    series("penstock_broker_ready", BROKER): "0x30",
                    series("penstock_broker_recovering_partitions", BROKER): "900-10x30",
                },
                20,
            ),
        ),
    ),
    Alert(
        "PenstockPartitionsOffline",
        "critical",
        f"{OFFLINE} > 0",
        "{1m}",
        "{{ $value }} partitions of broker {{ $labels.instance }} in {{ $labels.datacenter }} are offline.",
        "journalctl -u penstock-broker -p warning -n 50; penstock topics log-dirs -b <instance>:9092",
        "A log is damaged, lost or not open, or its folder is offline. The broker's log names the partition and the command.",
        (
            fires(OFFLINE, BROKER, "0 2x5", 4, "2"),
            quiet(OFFLINE, BROKER, "0x5", 4),
        ),
    ),
    Alert(
        "PenstockUnderMinIsr",
        "critical",
        f"{UNDER_MIN_ISR} > 0",
        "{1m}",
        "{{ $value }} partitions of broker {{ $labels.instance }} have fewer replicas in sync than min.insync.replicas.",
        "penstock cluster -b <instance>:9092",
        "Producers with acks=all are refused there, and consumers see no new records. A broker is down, or its disk is slow.",
        (fires(UNDER_MIN_ISR, BROKER, "0 2x5", 4, "2"), quiet(UNDER_MIN_ISR, BROKER, "0x5", 4)),
    ),
    Alert(
        "PenstockUnderReplicated",
        "warning",
        f"{UNDER_REPLICATED} > 0",
        "{10m}",
        "{{ $value }} partitions that broker {{ $labels.instance }} leads lack replicas in sync for {10m}.",
        "penstock cluster -b <instance>:9092",
        "A broker is down, catches up after a start, or doesn't keep up. One more loss may stop producers with acks=all.",
        (fires(UNDER_REPLICATED, BROKER, "3x20", 15, "3"), quiet(UNDER_REPLICATED, BROKER, "3x5 0x15", 15)),
    ),
    Alert(
        "PenstockLeaseOver",
        "critical",
        "penstock_lease_left_seconds == 0",
        "{1m}",
        "Broker {{ $labels.instance }} has no answer from ZooKeeper: it serves acks=all alone.",
        "journalctl -u penstock-broker -g -i zookeeper -n 30; penstock cluster -b <instance>:9092",
        "ZooKeeper is down, or this broker is cut off from it. Groups, transactions and acks=1 wait; nothing is lost.",
        (
            fires("penstock_lease_left_seconds", BROKER, "3 0x5", 4),
            quiet("penstock_lease_left_seconds", BROKER, "3x5", 4),
            quiet("penstock_lease_left_seconds", BROKER, "-1x5", 4),
        ),
    ),
    Alert(
        "PenstockSessionLost",
        "warning",
        f"increase({SESSIONS_LOST}[{{1h}}]) > 0",
        "{0m}",
        "Broker {{ $labels.instance }} has lost its session with ZooKeeper within {1h}: others led its partitions meanwhile.",
        "journalctl -u penstock-broker -g -i 'session|lease|hangs' -n 30; penstock cluster -b <instance>:9092",
        "The machine stood still or was cut off for longer than `zookeeper.session.timeout.ms`, or ZooKeeper was, or a disk "
        "hung for `penstock.disk.hang.ms`. Nothing that acks=all answered is lost. Look at the machine's disks, processors, "
        "memory and network.",
        (
            fires(SESSIONS_LOST, BROKER, "0x5 1x30", 10),
            quiet(SESSIONS_LOST, BROKER, "1x30", 10),
            quiet(SESSIONS_LOST, BROKER, "0x5 1x90", 80),
        ),
    ),
    Alert(
        "PenstockUncleanElection",
        "critical",
        f"increase({UNCLEAN}[{{1h}}]) > 0",
        "{0m}",
        "Controller {{ $labels.instance }} has elected a leader that lacks records within {1h}.",
        "journalctl -u penstock-broker -g -i unclean -n 30; penstock cluster -b <instance>:9092",
        "Records that acks=all had answered may be lost. An operator asked for it (`penstock cluster elect --unclean`), or "
        "`unclean.leader.election.enable` or `unclean.recovery.timeout.ms` did. `penstock audit` says what the pipeline lacks.",
        (
            fires(UNCLEAN, BROKER, "0x5 1x30", 10),
            quiet(UNCLEAN, BROKER, "1x30", 10),
            quiet(UNCLEAN, BROKER, "0x30", 10),
        ),
    ),
    Alert(
        "PenstockTruncationRefused",
        "critical",
        "increase(penstock_refused_truncations_total[{1h}]) > 0",
        "{0m}",
        "Broker {{ $labels.instance }} follows a leader no more that lacks records which were committed.",
        "journalctl -u penstock-broker -p warning -n 50",
        "The leader's log was cut short or put back from a copy. Keep both logs: the broker's log names the partition "
        "and the leader.",
        (
            fires("penstock_refused_truncations_total", BROKER, "0x5 1x60", 10),
            quiet("penstock_refused_truncations_total", BROKER, "1x60", 10),
        ),
    ),
    Alert(
        "PenstockNoActiveController",
        "critical",
        f"sum by (datacenter) ({CONTROLLERS}) != 1",
        "{1m}",
        "Datacenter {{ $labels.datacenter }} has {{ $value }} active controllers; one is right.",
        "systemctl status penstock-broker; journalctl -u penstock-broker -n 50",
        "Without a controller no topic can be made, changed or deleted. With two, two clusters have one datacenter's label.",
        (
            Case({series(CONTROLLERS, BROKER): "1 0x5"}, 4, {"datacenter": "ewr"}, "0"),
            quiet(CONTROLLERS, BROKER, "1x5", 4),
        ),
    ),
    Alert(
        "PenstockFolderOffline",
        "critical",
        "penstock_log_folder_offline == 1",
        "{0m}",
        "Log folder {{ $labels.folder }} of broker {{ $labels.instance }} is offline.",
        "journalctl -u penstock-broker -p err -n 50; penstock doctor " + SERVER,
        "A write or an fsync failed there. Its partitions are offline until the next start; look at the disk before that.",
        (
            fires("penstock_log_folder_offline", FOLDER, "0 1x5", 2),
            quiet("penstock_log_folder_offline", FOLDER, "0x5", 2),
        ),
    ),
    Alert(
        "PenstockFolderFull",
        "critical",
        "penstock_log_folder_full == 1",
        "{0m}",
        "Log folder {{ $labels.folder }} of broker {{ $labels.instance }} is full: it refuses records.",
        "df -h <folder>; penstock topics log-dirs -b <instance>:9092",
        "Producers get errors and try again. Shorten the retention of a large topic, or move partitions to another folder.",
        (fires("penstock_log_folder_full", FOLDER, "0 1x5", 2), quiet("penstock_log_folder_full", FOLDER, "0x5", 2)),
    ),
    Alert(
        "PenstockFolderHangs",
        "critical",
        "penstock_log_folder_waits_seconds > {hangs:s}",
        "{0m}",
        "The disk of log folder {{ $labels.folder }} of broker {{ $labels.instance }} has not answered for {hangs}.",
        "dmesg -T | grep -iE 'blocked for more|I/O error|timeout' | tail -n 20; iostat -x 1 3",
        "A flush is out, and produces to its partitions wait with it. Nothing is lost. A restart would wait for the disk, too: "
        "bring it back, or pull it. Once it fails, the folder goes offline and the others go on.",
        (
            fires("penstock_log_folder_waits_seconds", FOLDER, "0 0 20 80x5", 4),
            quiet("penstock_log_folder_waits_seconds", FOLDER, "0 0.01 25x5", 4),
        ),
    ),
    Alert(
        "PenstockThreadHangs",
        "critical",
        "penstock_network_thread_stands_seconds > {hangs:s}",
        "{0m}",
        "Thread {{ $labels.thread }} of broker {{ $labels.instance }} has been at one piece of work for {hangs}.",
        "dmesg -T | grep -iE 'blocked for more|I/O error|timeout' | tail -n 20; journalctl -u penstock-broker -n 50",
        "A network thread holds up its connections, a worker or a reader one request. Mostly a disk hangs, which "
        "PenstockFolderHangs names. A thread that is caught in a loop makes `/health/live` say no, and systemd "
        "restarts the broker.",
        (
            fires("penstock_network_thread_stands_seconds", BROKER, "0 0 20 80x5", 4, thread="network-0"),
            quiet("penstock_network_thread_stands_seconds", BROKER, "0 0.01 25x5", 4, thread="network-0"),
        ),
    ),
    Alert(
        "PenstockDiskFullSoon",
        "warning",
        "predict_linear(penstock_log_folder_free_bytes[{1h}], {disk:s}) < 0 and penstock_log_folder_full == 0",
        "{10m}",
        "Log folder {{ $labels.folder }} of broker {{ $labels.instance }} is full within {disk} at the rate of the last hour.",
        "df -h <folder>; penstock topics log-dirs -b <instance>:9092",
        "More comes in than retention deletes. The dashboard says which topics grew.",
        (
            Case(
                {
                    series("penstock_log_folder_free_bytes", FOLDER): "100e9-500e6x120",
                    series("penstock_log_folder_full", FOLDER): "0x120",
                },
                90,
                FOLDER,
            ),
            Case(
                {
                    series("penstock_log_folder_free_bytes", FOLDER): "100e9-100e6x120",
                    series("penstock_log_folder_full", FOLDER): "0x120",
                },
                90,
            ),
        ),
    ),
    Alert(
        "PenstockClockOff",
        "warning",
        "penstock_clock_settled == 0",
        "{5m}",
        "The clock of broker {{ $labels.instance }} jumped; the broker deletes nothing by age until it has settled.",
        "chronyc tracking || timedatectl timesync-status; journalctl -u penstock-broker -g clock -n 20",
        "Set the machine's time right. The log names the jump, and how to confirm a time that is right.",
        (fires("penstock_clock_settled", BROKER, "1 0x10", 8), quiet("penstock_clock_settled", BROKER, "1 0x3 1x10", 8)),
    ),
    Alert(
        "PenstockGroupLagGrows",
        "warning",
        GROWS % (("penstock_consumergroup_lag_seconds",) * 2),
        "{0m}",
        "Group {{ $labels.consumergroup }} falls back in {{ $labels.topic }}:{{ $labels.partition }}: its lag grew for {30m}.",
        "penstock groups describe <consumergroup> -b <instance>:9092",
        "Its members have gone, hang, or are slower than the producers. Silence this alert for groups that read once a day.",
        (
            fires("penstock_consumergroup_lag_seconds", GROUP, "0+60x60", 45),
            fires("penstock_consumergroup_lag_seconds", {**GROUP, "consumergroup": HOSTILE}, "0+60x60", 45),
            # A lag that stays, one that was caught up, one that comes in waves.
            quiet("penstock_consumergroup_lag_seconds", GROUP, "900x60", 45),
            quiet("penstock_consumergroup_lag_seconds", GROUP, "0+60x40 0x20", 45),
            quiet("penstock_consumergroup_lag_seconds", GROUP, "0+60x9 0+60x9 0+60x9 0+60x9 0+60x9", 45),
        ),
    ),
    Alert(
        "PenstockSeriesDropped",
        "warning",
        "max by (datacenter, part, instance, family) (max_over_time(penstock_metrics_dropped_series[{10m}])) > 0",
        "{5m}",
        "{{ $labels.part }} {{ $labels.instance }} leaves {{ $value }} series of {{ $labels.family }} out of its figures.",
        "penstock topics list -b <instance>:9092",
        "There are more topics, groups or partitions than a scrape shows: no alert sees those that it leaves out. If that is "
        "meant, say so: `penstock.metrics.partitions=false`.",
        (
            fires("penstock_metrics_dropped_series", BROKER, "0 5x20", 10, "5", family="kafka_log_log_size"),
            quiet("penstock_metrics_dropped_series", BROKER, "0x20", 10, family="kafka_log_log_size"),
        ),
    ),
)


def lanes(name: str, severity: Literal["critical", "warning"], states: str, wait: str, words: str, runbook: str) -> Alert:
    """An alert on lanes of mirror and dedupe in some states. By number: that is there however many lanes there are."""
    first = states.split("|")[0]
    late = 2 + int(wait.strip("{m}"))
    return Alert(
        name,
        severity,
        f'penstock_lanes{{state=~"{states}"}} > 0',
        wait,
        "{{ $value }} lanes of {{ $labels.stage }} {{ $labels.name }} " + words,
        "penstock {{ $labels.stage }} status " + PIPELINE,
        runbook,
        (
            fires("penstock_lanes", LANE, "0 3x30", late, "3", state=first),
            quiet("penstock_lanes", LANE, "0x30", late, state=first),
            quiet("penstock_lanes", LANE, "3x30", late, state="copying"),
        ),
    )


PIPELINE_ALERTS = (
    Alert(
        "PenstockStageDown",
        "critical",
        'up{part=~"mirror|dedupe"} == 0',
        "{2m}",
        "The {{ $labels.part }} on {{ $labels.instance }} does not answer Prometheus.",
        "systemctl status penstock-{{ $labels.part }}; journalctl -u penstock-{{ $labels.part }} -n 50",
        "The process has ended, hangs, or its address can't be reached. It starts where its last transaction ended.",
        (fires("up", STAGE, "1 0x5", 4), quiet("up", STAGE, "1x5", 4), quiet("up", BROKER, "0x5", 4)),
    ),
    Alert(
        "PenstockStageNotReady",
        "critical",
        "penstock_stage_ready == 0",
        "{10m}",
        "{{ $labels.stage }} {{ $labels.name }} on {{ $labels.instance }} is not ready.",
        "penstock {{ $labels.stage }} status " + PIPELINE,
        "It waits for a cluster, a topic or the place of another process; its log says for which.",
        (fires("penstock_stage_ready", LANE, "1 0x15", 13), quiet("penstock_stage_ready", LANE, "1 0x5 1x10", 13)),
    ),
    lanes(
        "PenstockLaneStopped",
        "critical",
        "stopped|lost",
        "{1m}",
        "have stopped: a person has to decide.",
        "A lane stops where going on could lose or repeat records. `status` says why, and with which command it goes on.",
    ),
    lanes(
        "PenstockLaneSilent",
        "critical",
        "silent",
        "{1m}",
        "are silent: records wait, and nobody commits.",
        "The process that has these lanes hangs, or none has them. Its restart is harmless.",
    ),
    lanes(
        "PenstockLaneUnreachable",
        "critical",
        "unreachable",
        # After `penstock.stalled.after.ms` such a lane is stalled.
        "{2m}",
        "reach their cluster no longer.",
        "The source's or target's broker is down, or the way to it. Nothing is lost while the source's retention lasts.",
    ),
    lanes(
        "PenstockLaneStalled",
        "critical",
        "stalled|waiting|no_topic|not_copied|not_begun|no_position",
        "{10m}",
        "try again and again, and do not get on.",
        "The target refuses a batch, a topic is missing, or an open transaction holds records back. `status` says which.",
    ),
    Alert(
        "PenstockLaneLagGrows",
        "warning",
        GROWS % (("penstock_lane_lag_seconds",) * 2),
        "{0m}",
        "{{ $labels.stage }} {{ $labels.name }} falls back in {{ $labels.topic }}:{{ $labels.partition }}"
        "{{ if $labels.source }} of {{ $labels.source }}{{ end }}: its lag grew for {30m}.",
        "penstock {{ $labels.stage }} status " + PIPELINE,
        "More comes in than the stage carries. Look at the dashboard: processor, network, or the disk of the ids.",
        (
            fires("penstock_lane_lag_seconds", LANE_OF, "0+60x60", 45),
            quiet("penstock_lane_lag_seconds", LANE_OF, "0+60x40 0x20", 45),
        ),
    ),
    Alert(
        "PenstockDedupeWithoutIds",
        "warning",
        "sum by (datacenter, part, instance, stage, name, topic) (rate(penstock_dedupe_without_id_total[{10m}])) > 0",
        "{5m}",
        "Records of {{ $labels.topic }} have no id: dedupe {{ $labels.name }} can't tell which came twice.",
        "penstock dedupe status <topic> " + PIPELINE,
        "A producer leaves the id out, or `penstock.dedupe.id` names another place. Such records pass more than once.",
        (
            Case(
                {series("penstock_dedupe_without_id_total", DEDUPED): "0x5 0+10x20"},
                20,
                {key: value for key, value in DEDUPED.items() if key != "partition"},
            ),
            quiet("penstock_dedupe_without_id_total", DEDUPED, "7x30", 20),
        ),
    ),
    Alert(
        "PenstockDedupeWindowShort",
        "warning",
        # A store that isn't full has dropped nothing.
        f"{WINDOW} < {{window:s}} and {DATABASE} > 0.9 * {DATABASE_MAX}",
        "{10m}",
        "Dedupe {{ $labels.name }} remembers ids for less than {window}: a record that comes again later passes twice.",
        "penstock dedupe status " + PIPELINE,
        "The id store is full and drops its oldest ids. Raise `penstock.dedupe.size.max.bytes`, if the disk has room.",
        (
            Case({**STORE, series(WINDOW, DEDUPED): "40000x30", series(DATABASE, DEDUPED): "95x30"}, 20, DEDUPED),
            Case({**STORE, series(WINDOW, DEDUPED): "40000x30", series(DATABASE, DEDUPED): "50x30"}, 20),
            Case({**STORE, series(WINDOW, DEDUPED): "90000x30", series(DATABASE, DEDUPED): "95x30"}, 20),
        ),
    ),
    Alert(
        "PenstockNightLate",
        "critical",
        # A host that is gone shows nothing: what it showed last counts for three days.
        "time() > last_over_time(penstock_night_due_timestamp_seconds[{3d}]) + {grace:s}",
        "{0m}",
        "The night of table {{ $labels.table }} is late: it should have been loaded {grace} ago.",
        "systemctl status penstock-etl penstock-etl.timer; journalctl -u penstock-etl -n 50",
        "The night waits for a lane, failed, or didn't start; so it may be with a table's first one. The journal has the "
        "reason, and the command to go on. Where nights are loaded at one time of the day, `--grace` of "
        "generate.py allows for it.",
        (
            fires("penstock_night_due_timestamp_seconds", TABLE, "3600x200", 121),
            fires("penstock_night_due_timestamp_seconds", TABLE, "3600x60 _x300", 240),
            quiet("penstock_night_due_timestamp_seconds", TABLE, "3600x200", 119),
        ),
    ),
    Alert(
        "PenstockNightFailed",
        "warning",
        "penstock_night_exit_code != 0",
        "{0m}",
        "The last run of nights of table {{ $labels.table }} ended with exit code {{ $value }}.",
        "journalctl -u penstock-etl -n 50",
        "1: refused or failed, 2: wrong configuration, 3: incomplete. The last lines say what is to be done.",
        (
            fires("penstock_night_exit_code", TABLE, "0 3x5", 3, "3"),
            quiet("penstock_night_exit_code", TABLE, "3 0x5", 3),
        ),
    ),
    Alert(
        "PenstockNightFiguresMissing",
        "warning",
        'up{part="etl"} == 0 or (up{part="etl"} unless on (instance) penstock_night_due_timestamp_seconds)',
        "{missing}",
        "{{ $labels.instance }} has shown no figures of nights for {missing}.",
        "systemctl status prometheus-node-exporter penstock-etl.timer; penstock config --list | grep -A 2 textfile",
        "No night ran, `penstock.etl.textfile` isn't set, or nobody serves the file. PenstockNightLate is blind without it.",
        (
            fires("up", NIGHTS, "0x1700", 1600),
            fires("up", NIGHTS, "1x1700", 1600),
            Case({series("up", NIGHTS): "1x1700", series("penstock_night_due_timestamp_seconds", TABLE): "1e9x1700"}, 1600),
        ),
    ),
    Alert(
        "PenstockRejects",
        "warning",
        f"{REJECTS} / ({ROWS} + {REJECTS}) > {{rejects}}",
        "{0m}",
        "{{ $value | humanizePercentage }} of the records of the last night of {{ $labels.table }} are rejects.",
        "penstock audit " + PIPELINE,
        "The rejects table has each record with its reason. Often a producer changed a field's type.",
        (
            Case({series(ROWS, TABLE): "900x5", series(REJECTS, TABLE): "100x5"}, 3, TABLE, "10%"),
            Case({series(ROWS, TABLE): "999x5", series(REJECTS, TABLE): "1x5"}, 3),
            Case({series(ROWS, TABLE): "0x5", series(REJECTS, TABLE): "0x5"}, 3),
        ),
    ),
)

ALERTS = {"broker": BROKER_ALERTS, "pipeline": PIPELINE_ALERTS}
