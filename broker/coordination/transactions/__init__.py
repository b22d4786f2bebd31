"""Transactional ids: who may produce under one, and transactions that hold in all of their partitions or in none.

    state.py       a transactional id, its transaction, and their record
    events.py      requests, answers, and the markers that are to be written
    machine.py     step(): time, expiry, load
    producers.py   InitProducerId, fencing
    partitions.py  AddPartitionsToTxn, verification
    ending.py      EndTxn in both protocols, completion
    writing.py     append, then it holds, then answer
"""
