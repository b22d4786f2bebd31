"""Kafka's messages as data (`apis/*.api`), and what is generated from them. In reading order:

schema            reads the `.api` files
codegen           generates the classes
messages          the classes, one for each request, response and record
message           what they are made of: bounded reading and appending of Kafka's primitive types
header            headers of requests and responses, and the version in front of internal records
consumerprotocol  what consumers of the classic protocol send each other
connection        a blocking connection for single requests
requests          single requests that benchmarks and tests make: a topic made, a batch written, a partition read
"""
