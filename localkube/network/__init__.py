"""The pod network: DNS, Services, NetworkPolicies, host ports and egress."""
