"""ElasticDL's design on a cluster of the kit: the job with parameter servers, and the command ``elasticdl``.

The programs that its pods run are in ``trainers/parameter_server``; what they do is in
``docs/parameter-server.md``. ``kit.ParameterServer`` is found by the entry points ``kitlib.names``.
"""
