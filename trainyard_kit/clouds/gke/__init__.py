"""GKE clusters in the user's project; `cluster` has the provider."""
