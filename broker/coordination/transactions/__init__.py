"""Transactional ids: who may produce under one, and transactions that hold in all of their partitions or in none.

state       a transactional id, its transaction, and their record
events      requests, answers, and the markers that are to be written
machine     step(): time, expiry, load
producers   InitProducerId, fencing
partitions  AddPartitionsToTxn, verification
ending      EndTxn in both protocols, completion
writing     append, then it holds, then answer
"""
