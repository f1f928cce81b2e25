"""ElasticDL's design on a cluster of the kit: the job with parameter servers, and the command ``elasticdl``.

The pods' programs are in ``trainers/parameter_server``, and ``docs/parameter-server.md`` describes them.
``kit.ParameterServer`` is loaded by the entry points ``kitlib.names``.
"""
