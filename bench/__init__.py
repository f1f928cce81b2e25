"""Paired benchmarks of this kit and its peers, in one run and alternating order.

``python -m bench`` prints a table and writes the samples as JSON. A missed limit is shown in the table, and
does not change the exit status. Tests of behaviour are in ``tests/``.

    measures/     one module per measure
    lab.py        the clusters of a run, created on demand and always deleted
    kubelets.py   the peer for nodes: Kubernetes' own kubelet, containerd and runc; needs root
    kwok.py       the peer for control planes: kwok on released programs
    torchft.py    the peer for lost workers
    peers/        programs that are compared with ours, or that run them
    training.py   one training run, in a cluster and by a bare torchrun
    torchrun.py   any program with a bare torchrun, and the speed of its epochs
    cifar10.py    images in CIFAR-10's format, and the programs that train on them
    watching.py   watch objects, with the times of changes
    sampling.py   order of the rounds, percentiles (pure)
    results.py    samples to values, ratios and verdicts (pure)
    table.py      results for people
    machine.py    the machine, and its load
"""
