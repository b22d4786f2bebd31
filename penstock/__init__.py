"""Penstock: events collected everywhere, mirrored once, deduplicated once, one complete table a night.

`pyx`, `broker`, `mirror`, `dedupe`, `pipeline` and `bench` are links to the folders beside this one. In reading order:

cli         the `penstock` command
commandgroup  groups of sub-commands
__main__    the same, as `python -m penstock`
metrics     figures as Prometheus reads them
tcp         connections to other hosts
ports       ports of this host for servers that start later, or again
http        the small HTTP server that figures and health are asked of
config      typed property tables; unknown keys are refused with a suggestion
javaproperties  the syntax of property files
references  `${file:...}` and the like in their values
regex       regular expressions that are matched in linear time
durable     names and small files that survive a power cut
log         log lines with fields, as text or JSON
output      standard output whose reader may go away
console     tables and the like on it
notify      what a service tells systemd
interrupts  the signals that ask a process to stop
groupnames  names of the groups and transactional ids of mirror and dedupe
hints       values in commands that messages name
suggestions  the name that a misspelt one was probably meant to be
tasks       how tasks that run beside another one end
failpoints  named places where a test may stop, delay, fail or kill a process
errors      Kafka's error codes, and the exception that carries one
"""

__version__ = "0.1.0"
