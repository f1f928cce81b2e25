"""Paired benchmarks of this kit and its peers, in one run and alternating order.

``python -m bench`` prints a table and keeps the samples as JSON. It judges and never asserts: what a limit
is missed by stands in the table, and the exit status is 0 all the same. Tests of behaviour are in ``tests/``.

    measures/     one module a measure: what is done, timed, and compared
    lab.py        the clusters of a run, made when they are needed and deleted whatever happens
    kubelets.py   the peer for nodes: Kubernetes' own kubelet, containerd and runc; needs root
    kwok.py       the peer for control planes: obtained, started from released programs, deleted
    torchft.py    the peer for losses of workers
    peers/        programs that are compared with ours, or run what is
    training.py   one training run, in a cluster and by a bare torchrun
    torchrun.py   any program by a bare torchrun, and how fast its epochs were
    cifar10.py    images in CIFAR-10's format, and what trains on them
    watching.py   seeing objects change, with the time at which it was seen
    sampling.py   order of the rounds, percentiles (pure)
    results.py    samples to values, ratios and verdicts (pure)
    table.py      results for people
    machine.py    what ran it, and how busy it was
"""
