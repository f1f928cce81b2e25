"""GKE clusters in a project of the user's: `cluster` is the provider, `create` what a cluster consists of."""
