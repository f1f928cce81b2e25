"""Programs and manifests of public repositories, run as they are."""
