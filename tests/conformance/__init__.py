"""Kubernetes' own conformance suite, run against a local cluster: ``make conformance``.

The suite and the images of its pods are built here, from Go modules and Debian's packages, and served by a
registry on the loopback. Nothing of the suite is changed or left out; what did not pass is in
``docs/conformance.md``, with the reason.
"""
