"""Benchmarks: Penstock and others' programs in turn, with the same load. In reading order:

command       `penstock bench`
run           a run: every case, its sides in turn, round after round
case          a case: one thing that is measured
cases/        all cases
targets       the figures to reach, as bounds on what cases measure
sides         what is measured: ours, others' programs, and the floor below all
world         what a case works with: brokers, topics, load, CPU seconds
frames        ready-made requests in files, for the load programs
programs      compiles the load programs
programs/     the load programs, in C
process       what a process costs, as the kernel counts it
disk          the disk below a folder, and a slower one for one process
slowflush     a file whose flushes take longer, for a disk in it
clusters      three brokers of ours or of Apache Kafka's
stockclients  librdkafka's clients, and when they were acknowledged
apache_kafka  Apache Kafka for benchmarks and tests
zookeeper     ZooKeeper for benchmarks and tests
stages        programs that work between brokers, held while their input is filled
mirrormaker   MirrorMaker 2, tuned, exactly once
report        what a run found, for people and for programs
figures       the table of figures in a document: one row a target
history       a line a run, so that figures can be drawn over time
scraper       a broker's figures, asked for each second
hoarders      clients that hold memory for requests which never come whole
plots         pictures of a run
"""

if __name__ != "penstock.bench":
    raise ImportError("`bench` is a part of penstock: `import penstock.bench`")
