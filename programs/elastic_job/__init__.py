"""The operator of ElasticJobs: a controller that runs in a pod."""
