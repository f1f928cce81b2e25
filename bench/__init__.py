"""Paired benchmarks: this kit beside its peers, in one run, in alternating order.

``python -m bench`` prints a table and keeps the samples as JSON. It judges and never asserts: what a limit
is missed by stands in the table, and the exit status is 0 all the same. Tests of behaviour are in ``tests/``.

    measures/     one module a measure: what is done, timed, and compared
    lab.py        the clusters of a run, made when they are needed and deleted whatever happens
    kwok.py       the peer: obtained, started from the same Kubernetes programs, deleted
    training.py   one training run, in a cluster and by a bare torchrun
    watching.py   seeing objects change, with the time at which it was seen
    sampling.py   order of the rounds, percentiles (pure)
    results.py    samples to values, ratios and verdicts (pure)
    table.py      results for people
    machine.py    what ran it, and how busy it was
"""
