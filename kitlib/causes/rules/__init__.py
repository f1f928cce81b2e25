"""The kit's rules, a module for each family of causes; each lists its rules in ``RULES``."""
