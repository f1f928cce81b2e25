"""The life of a pod on a virtual node: its sandbox, its containers in their order, its end, its reports."""
