"""EKS and GKE as providers of kitlib's `Cluster`, loaded when one is asked for."""
