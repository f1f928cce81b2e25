package factory

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// dialAgainSoon is for an etcd that starts beside the API server and does not listen yet: gRPC would try again a
// second later.
var dialAgainSoon = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 20 * time.Second,
})
