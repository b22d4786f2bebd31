"""`penstock doctor`: what of this machine is as a broker likes it, and what isn't. In reading order:

command  `penstock doctor`
facts    what the machine is like: gathered, not checked
checks   what the facts mean: functions of them alone
"""
