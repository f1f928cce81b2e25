"""EKS and GKE as providers of kitlib's `Cluster`, loaded on first use."""
