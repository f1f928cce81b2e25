"""A cluster at AWS, in parts: what it is made of, and how each part is found, made and unmade with boto3.

Nothing else in the kit imports boto3, and nothing imports this before an EKS cluster is asked for.
"""
