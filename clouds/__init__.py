"""What clusters at a cloud are made of, and how that is brought up, found again and taken down.

`resource` is the contract of one thing at a cloud, `steps` makes and unmakes many of them. The things
themselves are in `aws` and `google`; `prices` says what it costs, `consent` asks whether that is agreed to,
`preflight` looks before anything is paid for; that a cluster is one of the kit's providers is in `clusters`.
"""
