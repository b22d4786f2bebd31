"""The daily commands, against any Kafka cluster: `penstock topics|groups|configs|produce|consume`."""
