"""The nightly load: one night's ranges of the deduplicated topic become one commit of a Delta table. In reading order:

command      `penstock etl`
load         nights, in the order that makes each of them happen exactly once
night        a night: one calendar day
cut          where a night ends, once all that it holds has come through
clusterview  what a night asks of one cluster
plan         a night's ranges, written down before anything is read
events       a night's records as columns: read by Spark, parsed, validated
declared     the declared schema of an event
columntypes  the types that a schema may declare, read without Spark
fitting      whether the declared schema fits the table that is there
session      the Spark session
jvm          Spark's JVM: started, asked why it ended
children     the programs that a load starts, of which none outlives it
interrupt    signals that end the command
delta        the table's commit: rows, ranges, counts and run number together
table        what the table says of its loads, read without a JVM
rejects      the table of records that are no rows
ready        the ready marker of a night
durable      small files that are there whole or not at all
jars         the jars of Spark's Kafka source and of Delta
maven        jars through Maven, kept in the user's cache folder
errors       what ends a night's load with a sentence
"""
