"""The nightly load: one night's ranges of a topic become one commit of a Delta table. In reading order:

command        `penstock etl`
nights         the nights of one call, of all tables
display        what the command shows
figures        what became of nights, for Prometheus
load           nights, in the order that makes each of them happen exactly once
night          a night, by its date
cut            where a night ends, once all that it holds has come through
clusterview    what a night asks of one cluster
tablenotes     what the aggregate cluster notes for the nights: its clock, the tables and their runs
plan           a night's ranges, written down before anything is read
events         a night's records as columns: read by Spark, parsed, validated
declared       the declared schema of an event
sqlfunctions   the functions of Spark SQL that an event day may call
valuerules     which JSON values each declared type takes
eventreader    the reader of an event in Spark's JVM (`EventReader.java`), with the declared columns as its types
javaclasses    classes of ours in Spark's JVM, compiled there
recordcolumns  columns on request for what stands beside a record's value
idcolumns      fields of the id that dedupe looks for, held against the tables' columns
columntypes    the types that a schema may declare, read without Spark
fitting        whether the declared schema fits the table that is there
session        the Spark session
engine         Spark for the nights of one call, shared by all tables
follow         every night after its end, in order
jvm            Spark's JVM: started, asked why it ended
children       the programs that a load starts, of which none outlives it
interrupt      signals that end the command
run            a run of a plan: what Spark and Delta do of it
delta          the table's commit: rows, ranges, counts and run number together
ledger         the notes of nights, as commits carry them
changenotes    what others have changed in the table, as commits note it
changes        what others have changed in the table, read from Delta's log
table          the ledger of a table, read from Delta's log without a JVM
rowcounts      the rows of a table and of its rejects, as its data files have them
rejects        the table of records that are no rows
rejectfile     a run's rejects, as one file of that table
ready          the markers of nights: ready, or incomplete so far
places         the paths and URIs that a table can lie at
storage        where a table lies, and the files there that Python reads and writes itself
localstorage   a table in a folder
hadoopstorage  a table at hdfs:// or s3a://, asked through Spark's JVM
s3logstore     Delta's commits on S3, each a conditional put
jars           the jars of Spark's Kafka source, of Delta and of S3's client
maven          jars through Maven, kept in the user's cache folder and held against `jars.lock`
errors         what ends a night's load with a sentence
"""
